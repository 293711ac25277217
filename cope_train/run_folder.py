"""What a run leaves behind, besides checkpoints: metrics, trajectories and evaluations, as files that others read.

OUTPUT_DIR/metrics.jsonl                   one line a logged step
OUTPUT_DIR/trajectories/step_000001.jsonl  the step's episodes (`cope_gym.trajectory`)
OUTPUT_DIR/evaluations/NAME/result.json    and trajectories.jsonl, as `cope eval` writes them
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.trajectory import Trajectory
from cope_train.objectives.rows import Sample
from cope_train.rollout.driver import Episode


def refuse_used(folder: Path, resume: Any) -> None:
    """Keeps a run from writing over another one's checkpoints or model.

    Args:
        folder: Where it is to write.
        resume: What is said of `resume_from_checkpoint`.

    Raises:
        InputError: There are some, and the run is not to go on from them.
    """
    if resume not in (None, "", "none", "None", "false", "False", False) or not folder.is_dir():
        return
    found = get_last_checkpoint(str(folder)) or next(
        (str(folder / name) for name in ("adapter_config.json", "config.json") if (folder / name).is_file()), None
    )
    if found:
        raise InputError(
            f"{folder} holds a run already ({Path(found).name}): go on with it by resume_from_checkpoint=true, or "
            "name another output_dir",
            type="bad_option",
        )


class MetricsFile(TrainerCallback):
    """Writes every log line to `metrics.jsonl`; after a resume, lines past the checkpoint are dropped first."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self.started = time.time()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Cuts the file to what the state has seen."""
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = read_metrics(self.path) if state.global_step else []
        kept = [line for line in lines if line["step"] <= state.global_step]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds one line."""
        if state.is_world_process_zero and logs:
            line = {"step": state.global_step, "seconds": round(time.time() - self.started, 2)}
            line |= {name: _finite(value) for name, value in logs.items()}
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads `metrics.jsonl`; nothing where there is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def trajectories_file(folder: Path, step: int, rank: int = 0) -> Path:
    """Returns where a rank's episodes of a step are written."""
    return folder / "trajectories" / (f"step_{step:06d}" + (f"_rank{rank}" if rank else "") + ".jsonl")


def write_episodes(path: Path, episodes: Iterable[Trajectory], append: bool) -> None:
    """Writes episodes of one step."""
    trajectory.write(path, episodes, append=append)


def with_tokens(
    episode: Episode, tokenizer: PreTrainedTokenizerBase, advantages: Sequence[float], sample: Sample | None
) -> Trajectory:
    """Returns the trajectory with its per-token record.

    Args:
        episode: A finished episode.
        tokenizer: Gives the text of each token.
        advantages: One a completion token.
        sample: Its forecast sample; its target actions are marked in `forecast`.
    """
    buffer = episode.buffer
    marked = {slot.turn for branch in sample.branches for slot in branch.slots} if sample else set()
    forecast = [0] * len(buffer)
    for turn in buffer.turns:
        if turn.index in marked:
            forecast[turn.action_start : turn.action_end] = [1] * (turn.action_end - turn.action_start)
    values = [0.0] * buffer.prompt_length + list(advantages)
    episode.trajectory.tokens = {
        "ids": buffer.ids,
        "mask": buffer.mask,
        "text": tokenizer.batch_decode([[token] for token in buffer.ids]),
        "logprobs": [round(value, 4) for value in buffer.logprobs],
        "advantages": [round(value * mask, 4) for value, mask in zip(values, buffer.mask, strict=True)],
        "forecast": forecast,
    }
    return episode.trajectory
