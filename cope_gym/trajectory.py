"""One schema for every recorded episode: rollouts, evaluations, experts and imported data.

A file is JSON Lines, one episode a line, flat enough for `datasets.load_dataset("json", …)`. Writing and reading only;
nothing here plays or scores an episode.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


@dataclass
class Turn:
    """One action turn.

    Attributes:
        index: True turn index, from 0.
        message: Index into `Trajectory.messages` of the assistant message.
        action: The literal substring of the message that was executed; "" where none was found.
        action_span: Character range of `action` in that message, or `None` where there is none.
        valid: Whether the benchmark could execute the action.
        reward: Reward of this step.
        score: The benchmark's score after this step, in [0, 1].
        tokens: Number of sampled tokens, 0 where unknown.
        truncated: Whether the token limit cut the model's turn.
    """

    index: int
    message: int
    action: str
    action_span: tuple[int, int] | None = None
    valid: bool = True
    reward: float = 0.0
    score: float = 0.0
    tokens: int = 0
    truncated: bool = False


@dataclass
class Trajectory:
    """One episode.

    Attributes:
        env: Short environment name, e.g. `sciworld`.
        task_id: Stable task id.
        split: The benchmark's split.
        category: What results are grouped by.
        seed: Seed of the episode.
        policy: Who played, e.g. `gold`, `random`, a model name.
        messages: Chat messages `{"role", "content"}` in order, system prompt first where there is one.
        turns: The action turns.
        reward: Sum of rewards.
        score: Final score in [0, 1].
        raw_score: Final score as the benchmark counts.
        success: Whether the benchmark calls the episode solved.
        terminated: The task ended.
        truncated: A limit ended the episode.
        error: `{"type", "detail"}` of the infrastructure fault that ended it; then no score counts.
        options: Environment options.
        versions: Versions and data digests of what played.
        sample: Index among several episodes of the same task.
        step: Training step that produced it, or `None`.
        tokens: Optional per-token record, lists of equal length: `ids`, `mask`, and optionally `text`, `logprobs`,
            `advantages`, `forecast`.
        extra: Anything else worth keeping.
    """

    env: str
    task_id: str
    split: str = ""
    category: str = ""
    seed: int | None = None
    policy: str = ""
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    turns: list[Turn] = field(default_factory=list[Turn])
    reward: float = 0.0
    score: float = 0.0
    raw_score: float = 0.0
    success: bool = False
    terminated: bool = False
    truncated: bool = False
    error: dict[str, str] | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    versions: dict[str, Any] = field(default_factory=dict[str, Any])
    sample: int = 0
    step: int | None = None
    tokens: dict[str, list[Any]] | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    schema: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Returns the episode as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Trajectory:
        """Reads one line.

        Raises:
            ValueError: The line is not an episode of this schema.
        """
        data = json.loads(line)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA_VERSION:  # pyright: ignore[reportUnknownMemberType]
            raise ValueError(f"not an episode of schema {SCHEMA_VERSION}; was it written by `cope`?")
        known: dict[str, Any] = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known["turns"] = [_turn(t) for t in known.get("turns", [])]
        return cls(**known)


def protected(env: str, split: str) -> bool:
    """Whether the benchmark asks that what is said in these episodes is not published in plain text."""
    return env == "appworld" or (env == "mind2web" and split.startswith("test"))


def _turn(data: dict[str, Any]) -> Turn:
    span = data.get("action_span")
    values: dict[str, Any] = {**data, "action_span": None if span is None else (span[0], span[1])}
    return Turn(**values)


def write(path: str | os.PathLike[str], episodes: Iterable[Trajectory], append: bool = False) -> None:
    """Writes episodes, creating folders as needed.

    Args:
        path: Target file, usually `….jsonl`.
        episodes: What to write.
        append: Add to an existing file in place of replacing it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a" if append else "w", encoding="utf-8") as out:
        for episode in episodes:
            out.write(episode.to_json() + "\n")


def read(path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Yields the episodes of a file.

    Raises:
        ValueError: A line is damaged; the message names file and line. A last line without its newline (a writer that
            was killed) is skipped.
    """
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                return
            if line.strip():
                try:
                    yield Trajectory.from_json(line)
                except (ValueError, TypeError, KeyError) as error:
                    raise ValueError(f"{path}, line {number}: {error}") from error
