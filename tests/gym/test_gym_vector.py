"""The vector environment equals single ones, and makes one round trip a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from cope_gym.client import Client
from cope_gym.env import CopeEnv
from cope_gym.errors import InputError, LostSession
from cope_gym.server import Address
from cope_gym.transport import Patience
from cope_gym.vector import CopeVectorEnv
from tests.gym.proxy import Proxy

N = 3
ACTIONS = [  # the second ends early, the third never
    ("forward", "forward", "x"),
    ("forward", "forward", "back"),
    ("look", "forward", "forward"),
    ("forward", "forward", "back"),
    ("forward", "forward", "forward"),
    ("forward", "back", "x"),
    ("back", "forward", "x"),
    ("x", "forward", "forward"),
]


@pytest.fixture
def proxy(address: Address) -> Iterator[Proxy]:
    proxy = Proxy(address.url)
    yield proxy
    proxy.close()


def make(address: Address, mode: str = "NextStep", **kwargs: Any) -> CopeVectorEnv:
    made = gym.make_vec(
        "cope/SciWorld-v0",
        num_envs=N,
        env="toy",
        base_url=address.url,
        token=address.token,
        autoreset_mode=AutoresetMode(mode),
        **kwargs,
    )
    assert isinstance(made, CopeVectorEnv)
    return made


def singles(address: Address, mode: str) -> SyncVectorEnv:
    client = Client(address.url, address.token)
    return SyncVectorEnv([lambda: CopeEnv("toy", client=client)] * N, autoreset_mode=AutoresetMode(mode))


def record(env: VectorEnv[Any, Any, Any], mode: str) -> list[Any]:
    """Plays the fixed actions; with autoreset off, resets by mask."""
    played: list[Any] = [env.reset(seed=11)]
    for actions in ACTIONS:
        step = env.step(actions)
        played.append(step)
        done = np.logical_or(step[2], step[3])
        if mode == "Disabled" and done.any():
            played.append(env.reset(options={"reset_mask": done}))
    env.close()
    return played


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_equals_single_environments(address: Address, mode: str) -> None:
    ours, theirs = record(make(address, mode), mode), record(singles(address, mode), mode)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[0] == other[0]
        for a, b in zip(mine[1:-1], other[1:-1], strict=True):
            np.testing.assert_array_equal(a, b)
        assert repr(mine[-1]) == repr(other[-1])
    ended = any(np.any(step[2]) for step in ours if len(step) == 5)
    assert ended


def test_final_observation_and_info_are_snapshots(address: Address) -> None:
    env = make(address, "SameStep")
    env.reset(seed=11)
    for _ in range(4):
        observations, _, terminations, _, infos = env.step(["forward"] * N)
    assert terminations.all()
    assert list(infos["final_obs"]) == ["You are at door 4."] * N
    assert list(infos["final_info"]["success"]) == [True] * N
    assert all(text.startswith("You stand in corridor") for text in observations)
    before = repr(infos)
    env.step(["forward"] * N)
    assert repr(infos) == before
    env.close()


def test_one_round_trip_a_step(address: Address, proxy: Proxy) -> None:
    with Client(proxy.url, address.token) as client:
        env = CopeVectorEnv(N, "toy", client=client)
        env.reset(seed=1)
        proxy.seen.clear()
        env.step(["forward"] * N)
        env.step(["back"] * N)
        assert [call for call in proxy.seen if "heartbeat" not in call[1]] == [("POST", "/v1/step_many")] * 2
        env.close()


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("vector", ["sync", "async"])
def test_gymnasiums_own_vectors_give_the_right_text(address: Address, vector: str) -> None:
    ours, theirs = make(address), gym.make_vec(
        "cope/SciWorld-v0",
        num_envs=N,
        env="toy",
        base_url=address.url,
        token=address.token,
        vectorization_mode=vector,
        vector_kwargs={"shared_memory": False} if vector == "async" else {},
    )  # fmt: skip
    assert isinstance(theirs, AsyncVectorEnv if vector == "async" else SyncVectorEnv)
    assert ours.reset(seed=3)[0] == theirs.reset(seed=3)[0]
    for actions in ACTIONS[:5]:
        assert ours.step(actions)[0] == theirs.step(actions)[0]
    ours.close()
    theirs.close()


def test_a_fault_names_its_sub_environment_and_a_reset_goes_on(address: Address) -> None:
    with Client(address.url, address.token, Patience(total=1)) as client:
        env = CopeVectorEnv(N, "toy", client=client)
        env.reset(seed=0)
        env.envs[1].running().close()
        with pytest.raises(LostSession) as caught:
            env.step(["forward"] * N)
        assert caught.value.extra["index"] == 1
        assert env.envs[0].running().reply.observation == "You are at door 1."
        env.reset(seed=0)
        assert env.step(["forward"] * N)[0] == ("You are at door 1.",) * N
        env.close()


def test_bad_input(address: Address) -> None:
    env = make(address)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(["x"] * N)
    env.reset()
    with pytest.raises(ValueError, match="2 actions were given for 3"):
        env.step(["x"] * 2)
    with pytest.raises(ValueError, match="num_envs=3"):
        env.reset(seed=[1, 2])
    with pytest.raises(InputError, match="Did you mean task_id"):
        make(address, taskid="x")
    env.close()
