"""`gym.make` and evaluation on the real AppWorld engine, on the self-made world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from cope_gym import evaluate
from cope_gym.evaluate.policies import PolicySpec
from cope_gym.evaluate.service import Service
from cope_gym.server import LocalClient

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def client(appworld_python: Path) -> Iterator[LocalClient]:
    """A server of its own kind: started on demand, shared, gone some seconds later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COPE_BASE_URL", raising=False)
        with LocalClient("appworld") as client:
            yield client


def test_a_task_is_solved_through_gymnasium(client: LocalClient) -> None:
    env = gym.make("cope/AppWorld-v0", task_id="debt_1")
    check_env(env.unwrapped, skip_render_check=True)
    text, info = env.reset()
    assert text.startswith("Task: ") and "- venmo:" in text
    assert (info["scenario"], info["scenario_tasks"], info["max_steps"]) == ("debt", 3, 50)
    _, reward, terminated, _, info = env.step("print(apis.supervisor.show_profile()")
    assert (reward, terminated, info["action_valid"]) == (0.0, False, False)
    gold = client.gold("appworld", "debt_1", {})
    assert gold is not None
    for action in gold:
        text, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["success"], info["steps"]) == (1.0, True, False, True, 2)
    env.close()


def test_scenarios_are_completed_by_all_variants(client: LocalClient, tmp_path: Path) -> None:
    """Five of six tasks are solved, and one of two scenarios."""

    def solutions(task_id: str, options: Mapping[str, Any]) -> Sequence[Any] | None:
        gold = client.gold("appworld", task_id, options)
        return ["apis.supervisor.complete_task()"] if task_id == "pin_3" else gold

    ids = [f"{scenario}_{number}" for scenario in ("debt", "pin") for number in (1, 2, 3)]
    panel = evaluate.Panel("appworld", "two scenarios", client.tasks("appworld")[0].split, tuple(ids)).sealed()
    service = Service("appworld", client)
    evaluation = evaluate.Evaluation(panel, service.rules(), versions=service.versions(), concurrency=2)
    policy = evaluate.make("gold", PolicySpec("", "appworld", solutions, {}, {}))
    metrics = evaluate.evaluate(evaluation, policy, service.make_env, tmp_path)["metrics"]
    assert metrics["success"]["value"] == pytest.approx(5 / 6)
    assert (metrics["scenario_goal_completion"]["value"], metrics["scenario_goal_completion"]["tasks"]) == (0.5, 2)
