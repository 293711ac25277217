"""The folder of one evaluation: settings, one line an episode as it ends, the final result.

`trajectories.jsonl` is both cache and result. While an evaluation runs, lines come in the order in which episodes end;
at the end the file is written anew in the order of the plan. A killed writer leaves at most one torn last line, which
is cut off before anything is appended.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.trajectory import Trajectory

Key = tuple[str, int]


class Store:
    """Reads and writes the folder.

    Args:
        folder: Made if absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings_file = folder / "settings.json"
        self.episodes_file = folder / "trajectories.jsonl"
        self.result_file = folder / "result.json"

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Generator[None]:
        """Claims the folder for an evaluation with these settings.

        Raises:
            InputError: Another process writes there, or the folder holds an evaluation with other settings.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                detail = (
                    f"Another evaluation writes to {self.folder} at this moment; wait for it or choose another --out."
                )
                raise InputError(detail, type="busy") from error
            self._agree(settings)
            self._cut_torn_line()
            yield

    def _agree(self, settings: Mapping[str, Any]) -> None:
        wanted = json.loads(json.dumps(settings))
        if self.settings_file.exists():
            difference = _first_difference(self.settings(), wanted)
            if difference:
                raise InputError(
                    f"{self.folder} holds an evaluation with other settings ({difference}); choose another --out.",
                    type="other_settings",
                )
        else:
            replace(self.settings_file, json.dumps(wanted, indent=1, ensure_ascii=False) + "\n")

    def settings(self) -> dict[str, Any]:
        """Returns the settings with which the folder was made.

        Raises:
            InputError: The folder holds no evaluation.
        """
        if not self.settings_file.is_file():
            raise InputError(f"{self.folder} holds no evaluation (no settings.json).", type="no_evaluation")
        return cast("dict[str, Any]", json.loads(self.settings_file.read_text(encoding="utf-8")))

    def _cut_torn_line(self) -> None:
        if not self.episodes_file.exists():
            return
        with self.episodes_file.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            position = size
            while position:
                start = max(0, position - 65536)
                file.seek(start)
                newline = file.read(position - start).rfind(b"\n")
                if newline >= 0:
                    position = start + newline + 1
                    break
                position = start
            if position < size:
                file.truncate(position)

    def episodes(self) -> dict[Key, Trajectory]:
        """Returns what has been played; of an episode that was tried again, the latest."""
        if not self.episodes_file.exists():
            return {}
        return {(episode.task_id, episode.sample): episode for episode in trajectory.read(self.episodes_file)}

    def append(self, episode: Trajectory) -> None:
        """Adds an episode and makes sure that it is on the disk."""
        with self.episodes_file.open("a", encoding="utf-8") as file:
            file.write(episode.to_json() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, episodes: Iterable[Trajectory], result: Mapping[str, Any]) -> None:
        """Writes the final files, each whole or not at all."""
        replace(self.episodes_file, "".join(episode.to_json() + "\n" for episode in episodes))
        replace(self.result_file, json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _first_difference(old: Any, new: Any, path: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        was, now = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        for key in sorted(was.keys() | now.keys()):
            difference = _first_difference(was.get(key), now.get(key), f"{path}.{key}" if path else key)
            if difference:
                return difference
        return ""
    return "" if old == new else f"{path}: {_short(old)} there, {_short(new)} now"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
