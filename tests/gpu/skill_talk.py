"""Teaches a model what skills look like: rule-made skills about solved episodes, to be cloned beside the episodes.

    python tests/gpu/skill_talk.py "experts/*-*/experts.jsonl" --system-prompt FILE --out experts/skills

Each solved episode gives two more: the writing of a skill about it, and the episode itself under the skill of another.
A rule sees only which kinds of commands an episode has; what a skill is worth, reinforcement learning has to find out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from cope_gym import trajectory
from cope_gym.skills.extraction import episode_text, extractor_prompt, with_skill
from cope_gym.skills.skill import Skill
from cope_gym.trajectory import Trajectory
from cope_train.sft import load_episodes

HISTORY, CARD = 3000, 2000  # characters of an episode before the extractor; length of a skill before a solver


def skill_talk(episodes: Sequence[Trajectory], system: str, history: int = HISTORY) -> list[Trajectory]:
    """Returns, for every episode, the writing of a skill about it and the episode under the next one's skill."""
    made: list[Trajectory] = []
    for index, episode in enumerate(episodes):
        body = json.dumps({k: v for k, v in skill_of(episode).to_dict().items() if v}, ensure_ascii=False)
        made.append(conversation(episode, extractor_prompt(), episode_text(episode, history), body))
        other = episodes[(index + 1) % len(episodes)]
        conditioned = {"role": "system", "content": with_skill(system, skill_of(other), CARD, len)}
        made.append(_like(episode, [conditioned, *(m for m in episode.messages if m["role"] != "system")]))
    return made


def skill_of(episode: Trajectory) -> Skill:
    """What a solution teaches, by rule: the kinds of its commands in order."""
    verbs = [" ".join(turn.action.split()[:2]) if turn.action.startswith(("pick", "look")) else turn.action.split()[0]
             for turn in episode.turns if turn.action]  # fmt: skip
    goal = {"find": "a kind of object and a box", "life": "living things by their life spans"}.get(
        episode.category[:4], "something to switch on"
    )
    return Skill(
        "go-focus-finish",
        "Go to the room, focus on what is asked for, then finish as the task says.",
        when_to_use=(f"The task names {goal}.",),
        decision_rules=tuple(f"Next use {verb}." for verb in list(dict.fromkeys(verbs))[:5]),
    )


def conversation(about: Trajectory, system: str, user: str, assistant: str) -> Trajectory:
    """One exchange as an episode."""
    roles = (("system", system), ("user", user), ("assistant", assistant))
    return _like(about, [{"role": role, "content": text} for role, text in roles])


def _like(episode: Trajectory, messages: list[dict[str, str]]) -> Trajectory:
    return Trajectory(episode.env, episode.task_id, category=episode.category, success=True, messages=messages)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("episodes", help="Files with solved episodes.")
    parser.add_argument("--system-prompt", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    made = skill_talk(load_episodes(options.episodes, True), options.system_prompt.read_text().strip())
    options.out.mkdir(parents=True, exist_ok=True)
    trajectory.write(options.out / "experts.jsonl", made)


if __name__ == "__main__":
    main()
