"""What a limited training run says."""

from __future__ import annotations

import pytest
from transformers import TrainerControl, TrainerState

from cope_train.progress import TimeLimit
from cope_train.quickstart import _shown

pytestmark = pytest.mark.train


@pytest.mark.parametrize(("step", "said"), [(1, []), (2, ["ended after 2 of 3 steps"]), (3, [])])
def test_a_run_that_its_time_limit_ends_says_so(step: int, said: list[str]) -> None:
    """The quickstart ended after two steps under a heading that promised three, and did not say why."""
    told: list[str] = []
    limit, control = TimeLimit(-1.0, steps=2, tell=told.append), TrainerControl()
    limit.on_train_begin(None, TrainerState(), control)
    limit.on_step_end(None, TrainerState(global_step=step, max_steps=3), control)
    assert control.should_training_stop == (step >= 2)
    assert len(told) == len(said) and all(part in text for part, text in zip(said, told, strict=True))


@pytest.mark.parametrize(("low", "high", "text"), [(0.1, 0.9, "0.50 [0.10, 0.90]"), (None, None, "0.50")])
def test_one_task_has_a_value_without_an_interval(low: float | None, high: float | None, text: str) -> None:
    assert _shown({"value": 0.5, "low": low, "high": high}) == text
