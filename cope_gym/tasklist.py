"""The tasks of a benchmark: stable ids in the published order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from cope_gym.client import TaskInfo
from cope_gym.errors import InputError
from cope_gym.registration import IDS
from cope_gym.server import connect


class TaskList(list[str]):
    """Task ids, with what is known of each.

    Attributes:
        env: Short environment name.
        split: The split they are of.
        infos: A `TaskInfo` for each, in the same order.
    """

    def __init__(self, env: str, infos: Sequence[TaskInfo]) -> None:
        super().__init__(info.id for info in infos)
        self.env = env
        self.split = infos[0].split if infos else ""
        self.infos = list(infos)

    @property
    def digest(self) -> str:
        """A hash over the ids in order: equal lists have equal digests on every machine."""
        return hashlib.sha256("\n".join(self).encode()).hexdigest()

    def to_dataset(self) -> Any:
        """Returns a `datasets.Dataset` with the columns `env`, `task_id`, `split` and `category`.

        Raises:
            InputError: The `data` extra is not installed.
        """
        try:
            import datasets  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as error:
            raise InputError("`to_dataset` needs datasets: pip install 'cope-gym[data]'", type="no_extra") from error
        rows = [{"env": self.env, "task_id": t.id, "split": t.split, "category": t.category} for t in self.infos]
        return datasets.Dataset.from_list(rows)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def tasks(
    env: str, split: str | None = None, *, base_url: str | Sequence[str] | None = None, token: str | None = None
) -> TaskList:
    """Returns the tasks of a split.

    Args:
        env: Short environment name, e.g. `sciworld`, or the Gymnasium id.
        split: The benchmark's own name of the split; by default the training split.
        base_url: A server; by default `$COPE_BASE_URL`, else a local one is started.
        token: Bearer token; by default `$COPE_TOKEN`.

    Raises:
        InputError: No such environment or split; the message has near names.

    Examples:
        >>> cope_gym.tasks("sciworld", split="dev")[:2]
    """
    name = short_name(env)
    return TaskList(name, connect(name, base_url, token).tasks(name, split))


def short_name(env: str) -> str:
    """Returns `sciworld` for `cope/SciWorld-v0`, and any other name as it is."""
    return next((name for name, id in IDS.items() if id == env), env)
