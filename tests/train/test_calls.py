"""Benchmarks that tell tool calls from messages: what the rollout records makes the forecast's rules live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from toy import make_tokenizer

from cope_gym.errors import InputError
from cope_train.episodes import record
from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.forecasting import (
    ForecastOptions,
    balance_factors,
    balanced,
    forecast_gate,
    learnable,
    trajectory_facts,
)
from cope_train.objectives.records import Branch, Record
from cope_train.rollout.backends import Completion, Request
from cope_train.rollout.driver import Job, Limits, Rollout, Setup
from cope_train.rollout.template import ChatTemplate
from cope_train.train import parse

pytestmark = pytest.mark.train
TOKENIZER = make_tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)
CHAT = ChatPieces.probe(TOKENIZER)
HANDOFF = "transfer_to_human_agents"


class Desk(gymnasium.Env[str, str]):
    """A customer's desk as τ² shows it: a turn is a message, or the tools named in `name(…) name(…)`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):  # type: ignore[override]
        return "user: my phone is broken", {"category": "toy"}

    def step(self, action: str):  # type: ignore[override]
        calls = [part.split("(")[0].strip() for part in action.split(")") if "(" in part]
        over = "goodbye" in action or HANDOFF in calls
        info = {
            "score": float(over),
            "success": over,
            "action_valid": "broken(" not in action,
            "tool_calls": calls,
            "handoff": calls == [HANDOFF],
        }
        return "tool: ok" if calls else "user: go on", 0.0, over, False, info


class Scripted:
    """A backend that says what is written, turn by turn."""

    batches = True
    context = 100_000

    def __init__(self, scripts: list[list[str]]) -> None:
        self.scripts = [list(script) for script in scripts]
        self.queue: list[Request] = []

    def submit(self, request: Request) -> None:
        self.queue.append(request)

    def poll(self) -> list[Completion]:
        queue, self.queue = self.queue, []
        replies = [TEMPLATE.reply(self.scripts[request.key].pop(0)) for request in queue]  # type: ignore[call-overload]
        return [Completion(r.key, ids, [0.0] * len(ids), True) for r, ids in zip(queue, replies, strict=True)]

    def release(self, key: Any) -> None:
        pass


def play(*scripts: list[str]) -> list[Record]:
    setup = Setup(Desk, TEMPLATE, "Serve.", "plain", Limits(turn_tokens=64, episode_tokens=2000), {"env": "desk"})
    jobs = [Job(f"desk/{i}", 0, (i,), i) for i in range(len(scripts))]
    return [record(episode, "g") for episode in Rollout(jobs, setup, Scripted(list(scripts))).play()]


def branches(record: Record, **options: Any) -> list[Branch]:
    return build_branches(record, CHAT, BranchOptions(**options))


SOLVED = ["hello", "find(1)", "broken(2)", "find(2) pay(3)", "done, goodbye"]


def test_the_rollout_knows_calls_from_messages() -> None:
    [turns] = [r.turns for r in play(SOLVED)]
    assert [turn.call for turn in turns] == [False, True, True, True, False]
    assert [turn.calls for turn in turns] == [0, 1, 1, 2, 0]
    assert [turn.valid for turn in turns] == [True, True, False, True, True]
    assert not any(turn.handoff for turn in turns)
    assert [t.handoff for t in play([f"{HANDOFF}()"])[0].turns] == [True]


def test_turns_with_several_calls_are_neither_anchor_nor_target() -> None:
    [episode] = play(SOLVED)
    found = {branch.turn: [slot.turn for slot in branch.slots] for branch in branches(episode)}
    assert 3 not in found and all(3 not in slots for slots in found.values())
    assert found[1] == [1, 4]  # turn 2 could not be executed, turn 3 holds two calls
    calls = {branch.turn: [slot.turn for slot in branch.slots] for branch in branches(episode, targets="calls")}
    assert calls[1] == [1] and 0 not in calls and 4 not in calls


def test_wins_without_an_action_and_null_tasks_teach_nothing() -> None:
    options = ForecastOptions(require_action=True, null_tasks=frozenset({"desk/0"}))
    episodes = play(SOLVED, ["hello", "goodbye"], [f"{HANDOFF}()"], SOLVED)
    facts = [trajectory_facts(e, branches(e), options) for e in episodes]
    assert [f.eligible for f in facts] == [False, False, False, True]
    assert forecast_gate(facts, "wins") == [False, False, False, True]
    assert all(e.success for e in episodes)


def test_samples_without_a_call_can_be_left_out() -> None:
    [episode] = play(["hello", "find(1)", "well", "so", "goodbye"])
    kept = learnable(episode, branches(episode, horizon=2), ForecastOptions(skip_no_call=True))
    assert [branch.turn for branch in kept] == [0, 1]


def test_the_balance_holds_the_share_of_calls() -> None:
    talk, work = play(["hello", "well", "so", "goodbye"], ["find(1)", "pay(2)", "find(3)", "goodbye"])
    options = ForecastOptions(balance_calls=True)
    built = [branches(e, horizon=1) for e in (talk, work)]
    facts = [trajectory_facts(e, b, options) for e, b in zip((talk, work), built, strict=True)]
    factors = balance_factors(facts, [1.0, 0.0])  # only the talker is learnt from: no call among the targets
    assert factors == (0.0, 0.0)
    call, message = balance_factors(facts, [1.0, 2.0])
    p, q = 3 / 8, 6 / 12
    assert call == pytest.approx(p / q) and message == pytest.approx((1 - p) / (1 - q))
    weighed = [balanced(b, work, (call, message)) for b in built[1]]
    firsts = [b.weights[b.slots[0].start] for b in weighed]
    assert firsts == pytest.approx([call, call, call, message])


def test_the_shipped_list_of_null_tasks_is_read(tmp_path: Path) -> None:
    args, _ = parse(["--config", "tau2/cope", "--output_dir", str(tmp_path), "--bf16", "false", "--use_cpu", "true"])
    options = args.forecast_options()
    assert options.require_action and options.balance_calls
    assert len(options.null_tasks) == 18 and all(
        task.split("/")[0] in ("airline", "retail") for task in options.null_tasks
    )
    args.forecast_null_tasks = "nothing.txt"
    with pytest.raises(InputError, match="names no file"):
        args.forecast_options()
