"""`gym.make` on the real ALFWorld, with nothing else said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from cope_gym.errors import InputError
from cope_gym.server import LocalClient

pytestmark = pytest.mark.engine


@pytest.fixture
def client(alfworld_python: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalClient]:
    """A server of its own kind: started on demand, shared, gone some seconds later."""
    monkeypatch.delenv("COPE_BASE_URL", raising=False)
    with LocalClient("alfworld") as client:
        yield client


def test_a_game_is_won_through_gymnasium(client: LocalClient) -> None:
    options = {"command_style": "put", "admissible_actions": True}
    gold = client.gold("alfworld", "generated/0", options)
    assert gold is not None
    env = gym.make("cope/ALFWorld-v0", task_id="generated/0", options=options)
    check_env(env.unwrapped, skip_render_check=True)
    text, info = env.reset()
    assert "Your task is to: put some pencil on sidetable." in text
    assert info["category"] == "pick_and_place_simple"
    assert info["max_steps"] == 50
    rewards: list[float] = []
    for action in gold:
        assert action in info["admissible_actions"]
        text, reward, terminated, truncated, info = env.step(action)
        rewards.append(float(reward))
    assert rewards == [0.0] * (len(gold) - 1) + [1.0]
    assert (terminated, truncated, info["success"], info["score"]) == (True, False, True, 1.0)
    env.close()


def test_a_group_of_one_game_is_stepped_together(client: LocalClient) -> None:
    envs = gym.make_vec("cope/ALFWorld-v0", num_envs=3, vectorization_mode="vector_entry_point", task_id="generated/1")
    texts, _ = envs.reset()
    assert len({str(text) for text in texts}) == 1
    texts, rewards, _, _, infos = envs.step(["look", "inventory", "nonsense"])
    assert str(texts[2]) == "Nothing happens."
    assert list(infos["action_valid"]) == [True, True, False]
    assert not any(rewards)
    envs.close()


def test_a_game_has_two_names(client: LocalClient) -> None:
    env = gym.make("cope/ALFWorld-v0", task_id="generated/1")
    text, info = env.reset()
    other_text, other_info = env.reset(options={"task_id": f"generated/{info['game']}"})
    assert other_text == text
    assert other_info["task_id"] == "generated/1"
    env.close()


def test_the_service_names_what_is_wrong(client: LocalClient) -> None:
    with pytest.raises(InputError, match="ALFWorld has no split 'nowhere'; the splits are"):
        gym.make("cope/ALFWorld-v0", task_id="nowhere/0").reset()
    with pytest.raises(InputError, match="AgentGym's game 103 is missing"):
        gym.make("cope/ALFWorld-v0", task_id="agentgym/103").reset()
    with pytest.raises(InputError, match="command_style is 'move' or 'put'"):
        gym.make("cope/ALFWorld-v0", task_id="generated/0", options={"command_style": "throw"}).reset()
