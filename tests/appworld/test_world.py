"""The self-made world: each evaluation is true after the solution, and false before it and in two wrong end states."""

from __future__ import annotations

from typing import Any

import pytest
from adapter_kit import AdapterWorker

from env_servers.appworld.world import intents

VARIANTS = intents.variants()
COMPLETE = "apis.supervisor.complete_task()"


def finish(worker: AdapterWorker, runs: dict[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Plays (task, code) pairs at the same time and returns the last replies; what is left open is completed."""
    worker.together("start", [{"session": name, "task_id": task, "seed": None, "options": {}} for name, (task, _) in runs.items()])  # fmt: skip # noqa: E501
    actions = [{"session": name, "action": code} for name, (_, code) in runs.items()]
    replies = dict(zip(runs, worker.together("step", actions), strict=True))
    for name, reply in replies.items():
        if not reply["terminated"]:
            replies[name] = worker.step(name, COMPLETE)
    worker.together("close", [{"session": name} for name in runs])
    return replies


def test_intents_are_many_and_of_several_apps() -> None:
    assert len(intents.INTENTS) >= 10 and len(VARIANTS) == 3 * len(intents.INTENTS)
    apps = {name: {app for app in ("simple_note", "todoist", "phone", "venmo") if f"apis.{app}." in _whole(variant)}
            for name, variant in VARIANTS.items()}  # fmt: skip
    assert sum(len(used) >= 2 for name, used in apps.items() if name.endswith("_1")) >= 5
    assert all(len(variant.wrong) == 2 for variant in VARIANTS.values())
    assert len({variant.instruction for variant in VARIANTS.values()}) >= 2 * len(intents.INTENTS)


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", intents.INTENTS)
def test_evaluations_tell_right_from_wrong(worker: AdapterWorker, scenario: str) -> None:
    runs: dict[str, tuple[str, str]] = {}
    for number in (1, 2, 3):
        task_id = f"{scenario}_{number}"
        variant = VARIANTS[task_id]
        runs[f"{number} solved"] = (task_id, intents.PRELUDE + variant.solution)
        runs[f"{number} nothing done"] = (task_id, COMPLETE)
        runs |= {f"{number} {name}": (task_id, intents.PRELUDE + code) for name, code in variant.wrong.items()}
    replies = finish(worker, runs)
    assert {name: reply["reward"] for name, reply in replies.items()} == {
        name: float(name.endswith(" solved")) for name in runs
    }
    for name, reply in replies.items():
        assert reply["info"]["success"] is name.endswith(" solved")
        assert 0 <= reply["info"]["tests_passed"] <= reply["info"]["tests"]


@pytest.mark.engine
def test_gold_is_the_solution(worker: AdapterWorker) -> None:
    [code] = worker.call("gold", task_id="debt_2", options={})
    replies = finish(worker, {"gold": ("debt_2", code)})
    assert replies["gold"]["reward"] == 1.0


def _whole(variant: intents.Variant) -> str:
    """The solution with the helpers that it calls, to see which apps it uses."""
    helpers = {"find_note": "simple_note", "project": "todoist", "roommates": "phone", "contact": "phone"}
    used = [f"apis.{app}." for name, app in helpers.items() if f"{name}(" in variant.solution]
    return variant.solution + " ".join(used)
