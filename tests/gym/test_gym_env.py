"""The Gymnasium contract, on a real server."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import cope_gym
from cope_gym.client import Client
from cope_gym.env import CopeEnv
from cope_gym.errors import InputError, LostSession, SessionError
from cope_gym.server import Address
from cope_gym.spaces import TextSpace


def make(address: Address, **kwargs: Any) -> gym.Env[str, str]:
    return gym.make("cope/SciWorld-v0", env="toy", base_url=address.url, token=address.token, **kwargs)


def play(env: gym.Env[str, str], actions: list[str]) -> list[Any]:
    return [env.step(action) for action in actions]


def test_check_env_and_a_whole_episode_without_a_warning(address: Address) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(address, render_mode="ansi")
        check_env(env.unwrapped)
        env = make(address, render_mode="ansi")
        _, info = env.reset(seed=1)
        assert info["task_id"].startswith("hall/train-")
        total = 0.0
        for _ in range(4):
            observation, reward, terminated, truncated, info = env.step("forward")
            total += float(reward)
            assert observation in env.observation_space
            assert env.render() is not None
        assert (total, terminated, truncated, info["score"], info["success"]) == (1.0, True, False, 1.0, True)
        env.close()


def test_seed_fixes_this_and_later_episodes(env: CopeEnv) -> None:
    first = [env.reset(seed=7)[0], env.reset()[0], env.reset()[0]]
    assert [env.reset(seed=7)[0], env.reset()[0], env.reset()[0]] == first
    assert len(set(first)) > 1


def test_the_documented_formula_picks_the_task(client: Client) -> None:
    from hashlib import sha256

    tasks = client.tasks("toy", "test")
    for seed in (0, 1, 2**40):
        number = int(sha256(f"toy:test:{seed}".encode()).hexdigest(), 16)
        assert client.create("toy", split="test", seed=seed).task_id == tasks[number % len(tasks)].id


def test_constructor_and_reset_options(client: Client) -> None:
    env = CopeEnv("toy", client=client, task_id="hall/test-3", max_steps=2)
    _, info = env.reset()
    assert (info["task_id"], info["split"], info["max_steps"]) == ("hall/test-3", "test", 2)
    assert [step[3] for step in play(env, ["x", "x"])] == [False, True]
    _, info = env.reset(options={"task_id": "hall/train-1", "max_steps": 5})
    assert (info["task_id"], info["split"], info["max_steps"]) == ("hall/train-1", "train", 5)
    _, info = env.reset(options={"split": "train"})
    assert info["split"] == "train"
    _, info = CopeEnv("toy", client=client, split="test").reset(options={"task_id": "hall/train-1"})
    assert info["split"] == "train"
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "options", "type", "says"),
    [
        ({"env": "toi"}, {}, "unknown_env", "toy"),
        ({}, {"task_id": "hall/tran-1"}, "unknown_task", "hall/train-1"),
        ({}, {"split": "tset"}, "unknown_split", "test"),
        ({}, {"colour": "red"}, "bad_option", "colour"),
        ({}, {"max_steps": 0}, "bad_request", "max_steps"),
        ({}, {"weird": float("nan")}, "bad_request", "JSON"),
        ({}, {"weird": object()}, "bad_request", "JSON"),
    ],
)
def test_bad_input_is_one_sentence_with_the_fix(
    client: Client, kwargs: dict[str, Any], options: dict[str, Any], type: str, says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        CopeEnv(**{"env": "toy", "client": client, **kwargs}).reset(options=options)
    assert caught.value.type == type
    assert "\n" not in str(caught.value)
    assert not caught.value.retryable


def test_unknown_keywords_name_near_ones(address: Address) -> None:
    with pytest.raises(InputError, match="no keyword 'taskid'.*Did you mean task_id"):
        make(address, taskid="x")
    with pytest.raises(InputError, match="options={…}"):
        make(address, simplification="easy")
    with pytest.raises(InputError, match="no render mode 'human'"):
        CopeEnv("toy", render_mode="human", base_url=address.url)


def test_options_are_a_mapping(client: Client) -> None:
    for wrong in ("easy", ["easy"]):
        with pytest.raises(InputError, match="options maps names to values"):
            CopeEnv("toy", client=client, options=wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InputError, match="options maps names to values"):
            client.create("toy", options=wrong)  # pyright: ignore[reportArgumentType]


def test_unknown_ids_name_near_ones() -> None:
    with pytest.raises(gym.error.NameNotFound, match="SciWorld"):
        gym.make("cope/SciWorl-v0")
    with pytest.raises(gym.error.NamespaceNotFound, match="cope"):
        gym.make("cop/SciWorld-v0")


def test_step_before_reset_and_after_the_end(env: CopeEnv) -> None:
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step("forward")
    env.reset(seed=0)
    play(env, ["forward"] * 4)
    with pytest.raises(SessionError) as caught:
        env.step("forward")
    assert caught.value.type == "episode_over"
    env.reset(seed=0)
    assert env.step("forward")[1] == 0.25


def test_a_refused_action_leaves_the_episode_as_it_was(env: CopeEnv) -> None:
    env.reset(seed=0)
    with pytest.raises(InputError) as caught:
        env.step({"no": "text"})
    assert caught.value.type == "bad_action"
    assert env.step("forward")[0] == "You are at door 1."


def test_render(env: CopeEnv) -> None:
    assert env.render() is None
    env.reset(options={"task_id": "hall/train-0"})
    env.step("forward")
    assert env.render() == "> forward\nYou are at door 1.\n[hall/train-0: step 1 of 12, score 0.25]"


def test_pickle_and_copy_keep_all_but_the_episode(address: Address) -> None:
    env = CopeEnv("toy", base_url=address.url, token=address.token, split="test")
    env.reset(seed=5)
    for twin in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        assert twin.session is None
        assert twin.reset()[1]["split"] == "test"
        assert env.running().step("x").observation == "Nothing happens."
        assert twin.step("forward")[0] == "You are at door 1."
        twin.close()
    env.close()
    env.close()


def test_fork_gives_an_independent_second_episode(env: CopeEnv) -> None:
    env.reset(seed=0)
    env.step("forward")
    twin = env.fork()
    assert twin.running().id != env.running().id
    assert twin.step("forward")[0] == "You are at door 2."
    assert twin.step("forward")[0] == "You are at door 3."
    assert env.step("back")[0] == "You are at door 0."
    twin.close()
    assert env.step("forward")[0] == "You are at door 1."


def test_resume_takes_the_episode_over(address: Address, env: CopeEnv) -> None:
    env.reset(seed=0)
    play(env, ["forward", "forward"])
    again = cope_gym.resume(env.running().id, base_url=address.url, token=address.token)
    session = again.running()
    assert [step["action"] for step in session.transcript] == [None, "forward", "forward"]
    assert again.step("forward")[0] == "You are at door 3."
    with pytest.raises(SessionError) as caught:
        env.step("back")
    assert caught.value.type == "superseded"
    again.close()
    with pytest.raises(LostSession):
        cope_gym.resume(session.id, base_url=address.url, token=address.token)


def test_parse_action_wrapper_runs_what_it_labels(env: CopeEnv) -> None:
    from cope_gym.wrappers import ParseAction

    wrapped = ParseAction(env, "react")
    wrapped.reset(seed=0)
    turn = "Thought: on I go.\nAction: forward\nObservation: made up\nAction: back"
    observation, _, _, _, info = wrapped.step(turn)
    low, high = info["action_span"]
    assert (observation, turn[low:high], info["action_count"]) == ("You are at door 1.", "forward", 2)
    _, _, _, _, info = wrapped.step("I do not know")
    assert info["action_span"] is None and not info["action_valid"] and "Action:" in info["action_error"]


def test_text_space() -> None:
    space = TextSpace(max_length=5)
    assert "abcde" in space and "" in space and "abcdef" not in space and 3 not in space
    space.seed(1)
    samples = [space.sample() for _ in range(20)]
    space.seed(1)
    assert [space.sample() for _ in range(20)] == samples
    assert all(sample in space for sample in samples)
    assert space == TextSpace(5) and space != TextSpace(6)
    assert space.from_jsonable(space.to_jsonable(samples)) == samples


def test_ids_and_prompts() -> None:
    from cope_gym import prompts
    from cope_gym.actions import parse
    from cope_gym.registration import IDS

    assert all(gym.spec(id).kwargs == {"env": name} for name, id in IDS.items())
    assert gym.spec("cope/Tau2-v0").nondeterministic
    assert "sciworld" in prompts.names()
    assert not parse(prompts.load("sciworld"), "react").error, "it shows the format that it asks for"
    with pytest.raises(InputError, match="There is no prompt for 'nowhere'; there are: .*sciworld"):
        prompts.load("nowhere")


def test_gymnasiums_wrappers_work(address: Address) -> None:
    env = gym.wrappers.RecordEpisodeStatistics(make(address, max_episode_steps=2))
    env.reset(seed=0)
    env.step("forward")
    *_, truncated, info = env.step("forward")
    assert truncated and info["episode"]["r"] == 0.5 and info["episode"]["l"] == 2
    env.close()
