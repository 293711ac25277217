"""The package's own environment as an adapter, for `cope bench` and for tests that compare with it. Never served.

Each episode gets an environment object of its own, as `textworld.start` makes them, and TextWorld is left as it is.
"""

# pyright: reportAttributeAccessIssue=false
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textworld import EnvInfos
from textworld.envs import PddlEnv

from env_servers.adapter import Adapter, Episode, Facts, StepResult, Task
from env_servers.alfworld import engine, tasks
from env_servers.alfworld.data import games_file
from env_servers.alfworld.game import Game
from env_servers.alfworld.package import AlfredDemangler


class StockAdapter(Adapter):
    """ALFWorld as installed."""

    facts: ClassVar[Facts] = Facts(name="alfworld-stock", concurrency="interleaved")

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        self._catalogue = tasks.Catalogue(Path(str(self.settings.get("data", games_file()))), 600, 0)

    def metadata(self) -> dict[str, Any]:
        """See the base class."""
        return {"versions": engine.versions()}

    def splits(self) -> Sequence[str]:
        """See the base class."""
        return self._catalogue.splits()

    def tasks(self, split: str) -> list[Task]:
        """See the base class."""
        return self._catalogue.tasks(split)

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> Episode:
        """See the base class."""
        return _StockEpisode(self._catalogue.game(task_id).in_style(str(options.get("command_style", "move"))))


class _StockEpisode(Episode):
    def __init__(self, game: Game) -> None:
        infos = EnvInfos(won=True, admissible_commands=True)
        self._env = AlfredDemangler(PddlEnv(infos), shuffle=False)
        self._env.load(game.to_file())
        self.first = self._result(self._env.reset())

    def step(self, action: Any) -> StepResult:
        """See the base class."""
        return self._result(self._env.step(action)[0])

    @staticmethod
    def _result(state: Mapping[str, Any]) -> StepResult:
        won = bool(state["won"])
        info: dict[str, Any] = {"raw_score": int(won), "score": float(won), "success": won}
        info["admissible_actions"] = list(state["admissible_commands"])
        return StepResult(state["feedback"], float(won), won, False, info)


ADAPTER = StockAdapter
