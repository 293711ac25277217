"""Plays one episode: an environment on one side, a policy on the other, a `Trajectory` out of it.

A turn without an action is the agent's mistake: nothing is sent to the environment, the parser's sentence is the
observation, and the turn counts. A fault of the service leaves as an exception and is never scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import gymnasium as gym

from cope_gym.actions import ParsedAction, parse
from cope_gym.errors import InputError
from cope_gym.evaluate.policies import Prompt, Reply
from cope_gym.skills.lookup import BankLookup
from cope_gym.trajectory import Trajectory, Turn

TextEnv = gym.Env[str, Any]
_AGENTS_FAULTS = frozenset({"bad_action", "too_large"})
_KEPT = ("reward_parts", "scenario", "scenario_tasks", "step_metrics")  # of the last `info`, in the trajectory


@dataclass(frozen=True)
class Rules:
    """How an episode is played, equal for every policy of a comparison.

    Attributes:
        env: Short environment name.
        action_format: The format in which actions are written.
        max_turns: Turns after which the episode is cut, whether or not they held an action.
        system: System prompt, "" for none.
        first_observation_chars: Where the first observation is cut.
        observation_chars: Where later ones are cut.
    """

    env: str
    action_format: str
    max_turns: int
    system: str = ""
    first_observation_chars: int = 4000
    observation_chars: int = 2000


@dataclass(frozen=True)
class Item:
    """One planned episode."""

    task_id: str
    sample: int
    seed: int


def derived_seed(*parts: object) -> int:
    """Returns a 31-bit seed that depends on all parts and on nothing else."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:4], "big") >> 1


def play(
    env: TextEnv,
    act: Callable[[Prompt], Reply],
    item: Item,
    rules: Rules,
    options: Mapping[str, Any],
    policy: str,
    skills: BankLookup | None = None,
) -> Trajectory:
    """Plays one episode to its end.

    Args:
        env: The environment.
        act: The policy.
        item: What to play.
        rules: How.
        options: Environment options.
        policy: Its name.
        skills: Gives the skill that conditions the episode.

    Raises:
        CopeError: The service or the policy's endpoint failed, or the task or an option is unknown.
    """
    observation, info = env.reset(seed=item.seed, options={**options, "task_id": item.task_id})
    skill = skills.find(item.task_id, str(info.get("task_description", observation))) if skills else None
    system = skills.condition(rules.system, skill) if skills else rules.system
    episode = Trajectory(
        env=rules.env,
        task_id=item.task_id,
        split=str(info.get("split", "")),
        category=str(info.get("category", "")),
        seed=item.seed,
        policy=policy,
        sample=item.sample,
        options=dict(options),
        messages=[{"role": "system", "content": system}] if system else [],
        extra={"skill": skill.id, "skill_source": skill.source_task} if skill else {},
    )
    _observe(episode, observation, info, rules)
    for index in range(rules.max_turns):
        seed = derived_seed(item.seed, index)
        prompt = Prompt(
            messages=list(episode.messages),
            env=rules.env,
            task_id=item.task_id,
            options=options,
            action_format=rules.action_format,
            turn=index,
            sample=item.sample,
            seed=seed,
            info=info,
        )
        reply = act(prompt)
        if reply.give_up:
            episode.extra["gave_up"] = True
            episode.truncated = reply.truncated
            return episode
        info = _turn(env, episode, reply, index, info, rules)
        if episode.terminated or episode.truncated:
            return episode
    episode.truncated = True
    return episode


def _turn(
    env: TextEnv, episode: Trajectory, reply: Reply, index: int, info: dict[str, Any], rules: Rules
) -> dict[str, Any]:
    text = reply.text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written to a file
    parsed = parse(text, rules.action_format)
    episode.messages.append({"role": "assistant", "content": text})
    turn = Turn(
        index=index,
        message=len(episode.messages) - 1,
        action=parsed.action,
        action_span=(parsed.start, parsed.end) if parsed.action else None,
        valid=False,
        score=episode.score,
        tokens=reply.tokens,
        truncated=reply.truncated,
    )
    episode.turns.append(turn)
    if parsed.count > 1:
        episode.extra.setdefault("several_actions", []).append(index)
    observation, info = _step(env, episode, turn, parsed, info)
    _observe(episode, observation, info, rules)
    turn.score = episode.score
    return info


def _step(
    env: TextEnv, episode: Trajectory, turn: Turn, parsed: ParsedAction, info: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    if parsed.error:
        return parsed.error, info
    try:
        observation, reward, episode.terminated, episode.truncated, info = env.step(parsed.action)
    except InputError as error:
        if error.type not in _AGENTS_FAULTS:
            raise
        return error.detail, info
    turn.reward = float(reward)
    turn.valid = bool(info.get("action_valid", True))
    episode.reward += turn.reward
    return observation, info


def _observe(episode: Trajectory, observation: str, info: Mapping[str, Any], rules: Rules) -> None:
    longest = rules.observation_chars if episode.turns else rules.first_observation_chars
    text = observation if len(observation) <= longest else observation[:longest] + " …"
    episode.messages.append({"role": "user", "content": text})
    episode.extra |= {name: info[name] for name in _KEPT if name in info}
    episode.score = float(info.get("score", 0.0))
    episode.raw_score = float(info.get("raw_score", 0.0))
    episode.success = bool(info.get("success", False))
