"""A row whose environment failed counts nowhere: loss and gradients are those of the batch without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_gym.errors import InfrastructureError
from cope_train.trainer import CoPETrainer

pytestmark = pytest.mark.train


class Half(ToyEnv):
    """The task `bad` always breaks after its first step."""

    def __init__(self) -> None:
        super().__init__(fail={"bad": 99})


class FailingSample(ToyEnv):
    """Of the episodes of a group, those whose numbers are in `broken_rows` break."""

    count_resets = 0

    def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        result = super().reset(**kwargs)
        kind = type(self)
        self.broken = kind.broken_rows is not None and kind.count_resets % 4 in kind.broken_rows
        kind.count_resets += 1
        return result

    broken_rows: set[int] | None = None

    def step(self, action: str) -> Any:  # type: ignore[override]
        if self.broken:
            raise InfrastructureError("broke down", type="worker_failed")
        return super().step(action)


def gradients(trainer: CoPETrainer, batch: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


def make_trainer(folder: Path, rows: int, **options: Any) -> CoPETrainer:
    tokenizer = make_tokenizer()
    args = make_config(
        folder,
        per_device_train_batch_size=rows,
        num_generations=rows,
        gradient_accumulation_steps=1,
        beta=0.1,
        environment_threads=1,
        episode_attempts=1,
        **options,
    )
    env = FailingSample
    make_model(tokenizer, seed=1).save_pretrained(folder / "model")
    trainer = CoPETrainer(
        str(folder / "model"), args, ["door"], make_env=env, system_prompt="Play.", processing_class=tokenizer
    )
    # A reference model that differs from the policy, so that the KL term has a gradient.
    trainer.ref_model.load_state_dict(make_model(tokenizer, seed=2).state_dict())
    return trainer


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "sapo"])
def test_loss_and_gradients_equal_those_without_the_row(loss_type: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, 4, loss_type=loss_type)
    FailingSample.broken_rows, FailingSample.count_resets = {2}, 0
    with_failed = trainer._generate_and_score_completions([{"prompt": "door"} for _ in range(4)])
    episodes = trainer.source.episodes
    assert [e.failed for e in episodes] == [False, False, True, False]

    # The same three episodes as a batch of three; TRL itself scores and normalises them.
    smaller = make_trainer(tmp_path, 3, loss_type=loss_type)
    smaller.source.play = lambda *_: None  # type: ignore[method-assign]
    smaller.source.episodes = [e for e in episodes if not e.failed]
    without = smaller._generate_and_score_completions([{"prompt": "door"} for _ in range(3)])

    kept = [0, 1, 3]
    torch.testing.assert_close(with_failed["advantages"][kept], without["advantages"])
    assert with_failed["advantages"][2] == 0
    assert with_failed["num_items_in_batch"] == without["num_items_in_batch"]
    loss, grads = gradients(trainer, with_failed)
    expected_loss, expected = gradients(smaller, without)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, grad in expected.items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-4, atol=1e-7)
    assert max(g.abs().max() for g in expected.values()) > 0
    # The failed row's metrics are left out as well.
    for metric in ("kl", "entropy", "episodes/turns"):
        assert trainer._metrics["train"][metric] == pytest.approx(smaller._metrics["train"][metric], rel=1e-5)


def test_a_rollout_that_mostly_fails_ends_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, 4)
    FailingSample.broken_rows, FailingSample.count_resets = {0, 1, 2}, 0
    with pytest.raises(InfrastructureError, match="3 of 4 episodes failed"):
        trainer._generate_and_score_completions([{"prompt": "door"} for _ in range(4)])


def test_training_goes_on_with_failed_rows(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    args = make_config(tmp_path, loss_type="grpo", max_steps=3, episode_attempts=1, per_device_train_batch_size=8)
    trainer = CoPETrainer(
        make_model(tokenizer),
        args,
        ["bad", "door", "key", "open"],
        make_env=Half,
        system_prompt="Play.",
        processing_class=tokenizer,
    )
    trainer.train()
    shares = [log["episodes/failed"] for log in trainer.state.log_history if "episodes/failed" in log]
    assert len(shares) == 3 and 0 < max(shares) < 1
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
