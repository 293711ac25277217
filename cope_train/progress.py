"""Progress bars for training on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback


def bar(console: Console) -> Progress:
    """Returns a bar with counts and elapsed time."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console)


class StepBar(TrainerCallback):
    """One bar for all steps, with the latest numbers beside it.

    Args:
        progress: Where the bar is drawn.
        description: What is done.
        shown: Names of log entries, and what they are called here.
    """

    def __init__(self, progress: Progress, description: str, shown: dict[str, str]) -> None:
        self.progress, self.description, self.shown = progress, description, shown
        self.task: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draws the bar."""
        self.task = self.progress.add_task(self.description, total=state.max_steps, note="")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Moves it."""
        self.progress.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Shows the latest numbers."""
        known = [(label, (logs or {}).get(name)) for name, label in self.shown.items()]
        note = "  ".join(f"{label} {value:.3g}" for label, value in known if isinstance(value, int | float))
        if note and self.task is not None:
            self.progress.update(self.task, note=note)


class TimeLimit(TrainerCallback):
    """Ends training after some seconds, but not before a number of steps.

    Args:
        seconds: After which the running step is the last.
        steps: Made in any case.
        tell: Told in a sentence when training ends early.
    """

    def __init__(self, seconds: float, steps: int = 1, tell: Callable[[str], None] | None = None) -> None:
        self.seconds, self.steps, self.tell = seconds, steps, tell
        self.started = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the clock."""
        self.started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Looks at it."""
        if time.monotonic() - self.started > self.seconds and state.global_step >= self.steps:
            control.should_training_stop = True
            if self.tell and state.global_step < state.max_steps:
                self.tell(
                    f"  ended after {state.global_step} of {state.max_steps} steps: the time limit of "
                    f"{self.seconds:.0f} s is over (--patience 3: three times as much)"
                )


def quiet(trainer: Trainer) -> None:
    """Takes away the callbacks that print every log line."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
