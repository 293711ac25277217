"""Episodes token by token: the sampler against `generate`, the driver against a text world."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from toy import ToyEnv, make_model, make_tokenizer

from cope_gym.errors import InputError
from cope_gym.evaluate.policies import Prompt
from cope_train.policies import SampledModel
from cope_train.rollout.backends import Request, Sampling, TransformersBackend
from cope_train.rollout.driver import Episode, Job, Limits, Rollout, Setup
from cope_train.rollout.template import ChatTemplate

pytestmark = pytest.mark.train

TOKENIZER = make_tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)
MODEL = make_model(TOKENIZER)


def backend(sampling: Sampling = Sampling(), model: Any = MODEL, **kwargs: Any) -> TransformersBackend:  # noqa: B008
    return TransformersBackend(model, sampling, TEMPLATE.stop_ids, TOKENIZER.pad_token_id, **kwargs)


def play(tasks: list[str], env: Any = ToyEnv, sampler: Any = None, **options: Any) -> list[Episode]:
    options.setdefault("limits", Limits(turn_tokens=12))
    setup = Setup(env, TEMPLATE, "Play.", "plain", describe={"env": "toy"}, **options)
    jobs = [Job(task, seed=0, sampling_seed=(0, i)) for i, task in enumerate(tasks)]
    return Rollout(jobs, setup, sampler or backend()).play()


def test_greedy_sampling_with_kept_caches_equals_generate() -> None:
    sampler = backend(Sampling(temperature=0))
    prompts = [TOKENIZER.encode("You see a door"), TOKENIZER.encode("Action: open door. The door is open"), [7]]
    for turn in range(3):
        for key, ids in enumerate(prompts):
            if (key + turn) % 3:  # not every episode takes part in every batch
                sampler.submit(Request(key, list(ids), 4 + key))
        for done in sampler.poll():
            ids = prompts[done.key]
            reference = MODEL.generate(torch.tensor([ids]), max_new_tokens=4 + done.key, do_sample=False)
            assert done.ids == reference[0, len(ids) :].tolist()
            prompts[done.key] = [*ids, *done.ids, *TOKENIZER.encode(" key")]
    assert sampler.keeps_cache


def test_logprobs_are_those_of_the_temperature_scaled_model() -> None:
    sampler = backend(Sampling(temperature=0.7, top_p=0.9))
    ids = TOKENIZER.encode("You see a door")
    sampler.submit(Request(0, ids, 12, seed=(1, 2)))
    [done] = sampler.poll()
    logits = MODEL(torch.tensor([ids + done.ids])).logits[0, len(ids) - 1 : -1] / 0.7
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(done.ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(done.logprobs), expected, atol=1e-5, rtol=1e-4)


def test_a_turn_depends_on_its_seed_and_not_on_its_batch() -> None:
    ids = TOKENIZER.encode("You see a door")
    alone = backend()
    alone.submit(Request("a", ids, 8, seed=(3,)))
    together = backend()
    for key, other in [("b", [7, 8, 9]), ("a", ids), ("c", ids)]:
        together.submit(Request(key, other, 8, seed=(3,) if key == "a" else (key,)))
    found = {done.key: done.ids for done in together.poll()}
    assert found["a"] == alone.poll()[0].ids
    assert found["c"] != found["a"]


def test_sampled_frequencies_follow_the_model() -> None:
    sampler = backend(max_batch=1500)
    ids = TOKENIZER.encode("You see a door")
    for i in range(1500):
        sampler.submit(Request(i, ids, 1, seed=(i,)))
    counts = torch.zeros(len(TOKENIZER))
    for done in sampler.poll():
        counts[done.ids[0]] += 1
    expected = MODEL(torch.tensor([ids])).logits[0, -1].softmax(-1)
    assert (counts / 1500 - expected).abs().max() < 0.03


def test_buffers_hold_what_was_sampled() -> None:
    for episode in play(["door", "key"] * 3):
        buffer = episode.buffer
        assert len(buffer.ids) == len(buffer.mask) == len(buffer.logprobs) == len(buffer.turn_ids)
        assert sum(buffer.mask) == sum(turn.tokens for turn in episode.trajectory.turns)
        for turn, span in zip(episode.trajectory.turns, buffer.turns, strict=True):
            ids = buffer.ids[span.start : span.end]
            text = episode.trajectory.messages[turn.message]["content"]
            assert TEMPLATE.text(ids) == text
            assert set(buffer.turn_ids[span.start : span.end]) == {turn.index}
            if turn.action_span:
                assert text[slice(*turn.action_span)] == turn.action
                assert turn.action in TEMPLATE.text(buffer.ids[span.action_start : span.action_end])
            # A turn answers an observation: after h_t comes only the generation header.
            header = TOKENIZER.decode(buffer.ids[span.prefix_end : span.start])
            assert header == "<|im_start|>assistant\n"
        assert buffer.turns[-1].end == len(buffer) or buffer.mask[-1] == 0


def test_the_tokens_are_the_rendered_conversation() -> None:
    [episode] = play(["door"], limits=Limits(turn_tokens=30))
    trajectory = episode.trajectory
    expected = "".join(
        f"{m['role']}\n{m['content']}\n" for m in trajectory.messages[:-1]
    )  # the last is not trained on
    assert TOKENIZER.decode(episode.buffer.ids, skip_special_tokens=True) == expected.removesuffix("\n")


def test_a_cut_turn_is_closed_without_being_trained_on() -> None:
    [episode] = play(["door"], limits=Limits(turn_tokens=2))
    assert all(turn.truncated for turn in episode.trajectory.turns)
    for span in episode.buffer.turns:
        assert episode.buffer.ids[span.end] == TEMPLATE.end_of_turn and episode.buffer.mask[span.end] == 0


def test_limits_end_an_episode() -> None:
    [short] = play(["door"], env=lambda: ToyEnv(steps=50), limits=Limits(turns=2))
    assert short.trajectory.truncated and len(short.trajectory.turns) == 2
    [small] = play(["door"], env=lambda: ToyEnv(steps=50), limits=Limits(episode_tokens=100, turn_tokens=10))
    assert small.trajectory.truncated and small.buffer.completion_length <= 101


def test_the_model_s_context_ends_an_episode() -> None:
    """vLLM refuses a longer prompt with an exception, which ended a whole run."""
    sampler = backend()
    sampler.context = 150
    limits = Limits(turns=50, episode_tokens=10_000, turn_tokens=10)
    [small] = play(["door"], env=lambda: ToyEnv(steps=50), sampler=sampler, limits=limits)
    assert small.trajectory.truncated and small.trajectory.turns
    assert len(small.buffer.ids) <= 151  # the end of a turn that was cut is added without being sampled
    sampler.context = 5
    with pytest.raises(InputError, match=r"the first prompt of door has \d+ tokens.*lower first_observation_chars"):
        play(["door"], sampler=sampler)


def test_an_evaluated_model_gives_up_where_its_context_ends() -> None:
    """One such prompt ended the whole evaluation."""
    sampler = backend(Sampling(temperature=0))
    policy = SampledModel("toy", sampler, TEMPLATE, {}, max_turn_tokens=20, batch_size=4)
    messages = [{"role": "system", "content": "Play."}, {"role": "user", "content": "A hall."}]
    length = len(TEMPLATE.prompt(messages).ids)
    for room, gives_up in ((3, False), (0, True)):
        sampler.context = length + room
        [reply] = policy.act([Prompt(messages, "toy", "x/0", {}, "plain", 0, 0, 1)])
        assert reply.give_up == gives_up and reply.tokens <= room
    assert reply.truncated


def test_a_turn_without_an_action_is_told_so_and_never_reaches_the_environment() -> None:
    setup = Setup(ToyEnv, TEMPLATE, "Play.", "tag", Limits(turns=3, turn_tokens=12), {"env": "toy"})
    [episode] = Rollout([Job("door", 0, (0,))], setup, backend()).play()
    assert episode.no_action_turns == 3 and episode.trajectory.reward == 0
    assert "<action>" in episode.trajectory.messages[3]["content"]
    assert not any(turn.valid for turn in episode.trajectory.turns)


class Refusing(ToyEnv):
    """Takes no action longer than five characters."""

    def step(self, action: str) -> Any:  # type: ignore[override]
        if len(action) > 5:
            raise InputError("Write less.", type="too_large")
        return super().step(action)


def test_an_action_that_the_service_refuses_is_the_agents_mistake() -> None:
    [episode] = play(["door"], env=Refusing, limits=Limits(turns=3, turn_tokens=30))
    assert not episode.failed and len(episode.trajectory.turns) == 3
    assert episode.trajectory.messages[3]["content"] == "Write less." and not episode.trajectory.turns[0].valid


class Slow(ToyEnv):
    """The slow task's environment answers when the others are over; waited for, it would not in time."""

    others = threading.Event()

    def step(self, action: str) -> Any:  # type: ignore[override]
        if self.task == "slow" and not self.others.wait(60):
            raise InputError("the others have waited for this environment", type="bad_option")
        return super().step(action)


def test_a_slow_environment_delays_only_itself() -> None:
    over: list[str] = []

    def note(episode: Episode) -> None:
        over.append(episode.job.task_id)
        if len(over) == 2:
            Slow.others.set()

    setup = Setup(Slow, TEMPLATE, "Play.", "plain", Limits(turn_tokens=12), {"env": "toy"}, gather_seconds=0.02)
    jobs = [Job(task, seed=0, sampling_seed=(0, i)) for i, task in enumerate(["slow", "fast", "fast"])]
    episodes = Rollout(jobs, setup, backend(), note).play()
    assert over == ["fast", "fast", "slow"]
    assert all(len(episode.trajectory.turns) == 3 for episode in episodes)


def test_a_broken_episode_is_tried_again_then_given_up() -> None:
    broken = {"once": 1, "always": 99}
    once, always, fine = play(["once", "always", "door"], env=lambda: ToyEnv(fail=broken))
    assert not once.failed and len(once.trajectory.turns) == 3 and len(once.buffer.turns) == 3
    assert always.failed and always.trajectory.error == {"type": "worker_failed", "detail": "the toy world broke down"}
    assert not fine.failed


def test_environments_are_always_released() -> None:
    ToyEnv.opened = ToyEnv.closed = 0
    play(["a", "b", "c"])
    assert ToyEnv.opened == ToyEnv.closed == 3

    class Broken(ToyEnv):
        def step(self, action: str) -> Any:  # type: ignore[override]
            if self.task == "bad":
                raise InputError("no such option", type="bad_option")
            return super().step(action)

    with pytest.raises(InputError):
        play(["bad", "b", "c"], env=Broken)
    assert Broken.opened == Broken.closed

    def interrupt(_: Episode) -> None:
        raise KeyboardInterrupt

    setup = Setup(ToyEnv, TEMPLATE, "Play.", "plain", Limits(turn_tokens=12), {"env": "toy"})
    with pytest.raises(KeyboardInterrupt):
        Rollout([Job("a", 0, (0,)), Job("b", 0, (1,))], setup, backend(), interrupt).play()
    assert ToyEnv.opened == ToyEnv.closed


def test_ordered_rollouts_repeat_exactly() -> None:
    first = play(["door", "key", "open"], ordered=True)
    second = play(["door", "key", "open"], ordered=True)
    assert [e.buffer.ids for e in first] == [e.buffer.ids for e in second]
    assert [e.buffer.logprobs for e in first] == [e.buffer.logprobs for e in second]
