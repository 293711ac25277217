"""Advantages of single turns: on the right tokens, over the right group, and through TRL's loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.trajectory import Trajectory, Turn
from cope_train.rollout.buffer import EpisodeBuffer
from cope_train.rollout.driver import Episode, Job
from cope_train.skills.coevolution import Lineage
from cope_train.skills.source import SkillSource
from cope_train.trainer import CoPETrainer
from cope_train.turns import group_turn_advantages, token_advantages

pytestmark = pytest.mark.train
TOKENIZER = make_tokenizer()
HIGH, LOW = 0.5**0.5, -(2**0.5)


def episode(rewards: list[float], tokens: int = 2, failed: bool = False, task: str = "t") -> Episode:
    """Three prompt tokens, then turns of `tokens` sampled tokens with one observation token between them."""
    turn_ids = [-1] * 3
    for turn in range(len(rewards)):
        turn_ids += [turn] * tokens + [-1]
    turn_ids = turn_ids[:-1] if rewards else turn_ids
    buffer = EpisodeBuffer(ids=list(range(len(turn_ids))), turn_ids=turn_ids, prompt_length=3)
    turns = [Turn(i, 0, "x", reward=reward) for i, reward in enumerate(rewards)]
    return Episode(Job(task, None, ()), Trajectory("mind2web", task, turns=turns), buffer, failed=failed)


def test_golden_rows() -> None:
    """The vector of `test_step_advantages`, written onto tokens; observations have none."""
    rows = [episode([1, 1, 1, 0], 1), episode([1, 0], 2), episode([0], 3)]
    table = token_advantages(group_turn_advantages(rows), rows)
    expected = [
        [HIGH, 0, 1, 0, 1, 0, -1],
        [HIGH, HIGH, 0, -1, -1, 0, 0],
        [LOW, LOW, LOW, 0, 0, 0, 0],
    ]
    assert table.tolist() == [pytest.approx(row, abs=1e-4) for row in expected]


def test_a_failed_row_is_as_if_it_were_not_there() -> None:
    rows = [episode([1, 0]), episode([0]), episode([1, 1], failed=True)]
    assert group_turn_advantages(rows)[:2] == group_turn_advantages(rows[:2])
    table = token_advantages(group_turn_advantages(rows), rows)
    assert table[2].tolist() == [0.0] * table.shape[1]
    assert torch.equal(table[:2], token_advantages(group_turn_advantages(rows[:2]), rows[:2]))


def test_an_advantage_of_the_whole_row_reaches_its_sampled_tokens_only() -> None:
    table = token_advantages([0.5, [1.0, 2.0]], [episode([1, 1]), episode([1, 1], 1)])
    assert table.tolist() == [[0.5, 0.5, 0, 0.5, 0.5], [1, 0, 2, 0, 0]]
    assert token_advantages([], []).shape == (0, 1)


class Steps(ToyEnv):
    """Ends at the first wrong step; a step is right if what is said has an even number of characters."""

    def step(self, action: str) -> Any:  # type: ignore[override]
        self.count += 1
        right = len(action) % 2 == 0
        self.total += right / self.steps
        return "Next page.", float(right), not right or self.count == self.steps, False, self._info(True)


def trainer(folder: Path, **options: Any) -> CoPETrainer:
    config = make_config(folder, max_steps=1, turn_advantages=True, **options)
    return CoPETrainer(
        make_model(TOKENIZER),
        config,
        ["door", "key", "open", "look"],
        make_env=Steps,
        system_prompt="Play.",
        processing_class=TOKENIZER,
    )


def test_a_run_trains_on_them(tmp_path: Path) -> None:
    running = trainer(tmp_path)
    before = [parameter.clone() for parameter in running.model.parameters()]
    running.train()
    assert any(not torch.equal(a, b) for a, b in zip(before, running.model.parameters(), strict=True))
    played = list(trajectory.read(tmp_path / "trajectories" / "step_000000.jsonl"))
    rows = running.source.episodes
    assert {len(one.turns) for one in played} != {1}
    for at in range(0, len(rows), 4):
        values = group_turn_advantages(rows[at : at + 4])
        for row, of_turns, shown in zip(rows[at : at + 4], values, played[at : at + 4], strict=True):
            assert row.job.task_id == rows[at].job.task_id
            tokens = shown.tokens or {}
            expected = [of_turns[turn] if turn >= 0 else 0.0 for turn in row.buffer.turn_ids]
            assert tokens["advantages"] == pytest.approx(expected, abs=1e-3)


def test_the_loss_is_that_of_each_token(tmp_path: Path) -> None:
    """TRL's loss with a (B, C) table equals the policy gradient written out by hand."""
    running = trainer(
        tmp_path, loss_type="grpo", beta=0.0, gradient_accumulation_steps=1, per_device_train_batch_size=4
    )
    inputs = [{"prompt": "door"}] * 4
    batch = running._generate_and_score_completions(inputs)
    table, mask = batch["advantages"], batch["completion_mask"] * batch.get("tool_mask", 1)
    assert table.shape == batch["completion_ids"].shape
    running.current_gradient_accumulation_steps = 1
    batch["num_items_in_batch"] = mask.sum()
    loss = running._compute_loss(running.model, batch)
    by_hand = -((table * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()  # the ratio is 1 before the first update
    assert loss.item() == pytest.approx(by_hand.item(), abs=1e-5)


def test_what_does_not_go_together_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one a token"):
        make_config(tmp_path, turn_advantages=True, pad_to_multiple_of=8)


def test_solvers_have_them_and_skills_keep_their_own(tmp_path: Path) -> None:
    """Groups are the episodes of one task across skills; R_i uses the share of right steps, `reward: score`."""
    config = make_config(
        tmp_path, turn_advantages=True, skills=True, skill_count=2, skill_tasks=2, per_device_train_batch_size=6
    )
    source = SkillSource.__new__(SkillSource)
    source.config, source.sizes = config, config.skill_sizes()
    line = Lineage("s", tasks=["a", "b"])
    line.solved = {
        (0, 0, 0): episode([1, 0], task="a"),
        (1, 0, 0): episode([0], task="a"),
        (0, 1, 0): episode([1, 1], task="b"),
        (1, 1, 0): episode([1, 1], task="b"),
    }
    skills = [episode([0], 3), episode([0], 3)]
    source.lineages = [line]
    source.episodes = [*skills, *(line.solved[place] for place in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)))]
    table = source._of_turns(torch.tensor([0.2, -0.2, 9, 9, 9, 9]))
    assert table.tolist() == [
        pytest.approx([0.2, 0.2, 0.2, 0, 0], abs=1e-4),
        pytest.approx([-0.2, -0.2, -0.2, 0, 0], abs=1e-4),
        pytest.approx([1, 1, 0, -1, -1], abs=1e-4),
        pytest.approx([-1, -1, 0, 0, 0], abs=1e-4),
        pytest.approx([0, 0, 0, 0, 0], abs=1e-4),
        pytest.approx([0, 0, 0, 0, 0], abs=1e-4),
    ]
