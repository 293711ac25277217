"""What a run has to remember beside weights and optimizer, in every checkpoint: one small file a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

State = dict[str, Any]


class RunState(TrainerCallback):
    """Writes the state whenever a checkpoint is made.

    Args:
        rank: Number of this process.
        get: Gives the state.
        put: Takes one.
    """

    def __init__(self, rank: int, get: Callable[[], State], put: Callable[[State], None]) -> None:
        self.rank, self.get, self.put = rank, get, put

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Writes it into the checkpoint's folder."""
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if folder.is_dir():
            self._file(folder, self.rank).write_text(json.dumps(self.get()), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Reads it; a process that had no part in the run takes the first one's."""
        for rank in (self.rank, 0):
            path = self._file(folder, rank)
            if path.is_file():
                self.put(json.loads(path.read_text(encoding="utf-8")))
                return

    def _file(self, folder: Path, rank: int) -> Path:
        return folder / f"cope_state_{rank}.json"
