"""Cloning uses the token layout of rollouts and learns what the agent wrote, nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy import ToyEnv, make_model, make_tokenizer
from trl import SFTConfig

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.trajectory import Trajectory
from cope_train.rollout.backends import Sampling, TransformersBackend
from cope_train.rollout.driver import Job, Limits, Rollout, Setup
from cope_train.rollout.template import ChatTemplate
from cope_train.sft import buffer_of, clone, cloning_dataset, load_episodes

pytestmark = pytest.mark.train
TOKENIZER = make_tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)


def expert(task: str = "door") -> Trajectory:
    messages = [{"role": "system", "content": "Play."}, {"role": "user", "content": f"Your letters are {task}."}]
    for action in ("open door", "take key"):
        messages += [
            {"role": "assistant", "content": f"Action: {action}"},
            {"role": "user", "content": "The door is open."},
        ]
    return Trajectory("toy", task, messages=messages, success=True)


def test_the_layout_is_that_of_a_rollout() -> None:
    sampler = TransformersBackend(make_model(TOKENIZER), Sampling(), TEMPLATE.stop_ids, TOKENIZER.pad_token_id)
    setup = Setup(ToyEnv, TEMPLATE, "Play.", "plain", Limits(turn_tokens=12), {"env": "toy"})
    [episode] = Rollout([Job("door", 0, (0,))], setup, sampler).play()
    cloned = buffer_of(episode.trajectory, TEMPLATE)
    assert TOKENIZER.decode(cloned.ids, skip_special_tokens=True) == TOKENIZER.decode(
        episode.buffer.ids, skip_special_tokens=True
    )
    assert cloned.prompt_length == episode.buffer.prompt_length
    assert cloned.ids[: cloned.prompt_length] == episode.buffer.ids[: cloned.prompt_length]
    assert [turn.prefix_end - turn.start for turn in cloned.turns] == [
        turn.prefix_end - turn.start for turn in episode.buffer.turns
    ]


def test_only_action_turns_have_labels() -> None:
    row = cloning_dataset([expert()], TEMPLATE)[0]
    learnt = [i for i, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100]
    assert TOKENIZER.decode(learnt) == "Action: open door<|im_end|>Action: take key<|im_end|>"


def test_cloning_learns(tmp_path: Path) -> None:
    args = SFTConfig(
        str(tmp_path),
        max_steps=30,
        learning_rate=1e-2,
        per_device_train_batch_size=2,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = clone(make_model(TOKENIZER), TOKENIZER, [expert("door"), expert("key")], args)
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert losses[-1] < losses[0] / 5


def test_what_cannot_be_cloned_is_named(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    trajectory.write(path, [replace(expert(), success=False)])
    with pytest.raises(InputError, match="set only_success to false"):
        load_episodes(str(path), only_success=True)
    assert len(load_episodes(str(path), only_success=False)) == 1
    with pytest.raises(InputError, match="names no file"):
        load_episodes(str(tmp_path / "*.json"), only_success=True)
    with pytest.raises(InputError, match="no assistant turn"):
        buffer_of(Trajectory("toy", "door", messages=[{"role": "user", "content": "x"}]), TEMPLATE)
