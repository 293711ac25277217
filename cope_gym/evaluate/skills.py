"""What skills are worth: lift with intervals over tasks, by task type, and a bank's table in a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cope_gym.evaluate import results, statistics, store, viewer
from cope_gym.evaluate.policies import Policy, Prompt
from cope_gym.evaluate.runs import Evaluated
from cope_gym.skills.bank import BankedSkill, SkillBank
from cope_gym.skills.extraction import episode_text, extractor_prompt, read_skill
from cope_gym.trajectory import Trajectory

_HISTORY_CHARS = 12000
MOST_SKILLS = 200  # of a bank on a page


def extract_skills(writer: Policy, episodes: Sequence[Trajectory], bank: SkillBank) -> int:
    """Has a policy write a skill for every episode and stores those that can be used.

    Args:
        writer: Who writes; greedy where its temperature is 0.
        episodes: At most `writer.batch_size` of them.
        bank: Where to.

    Returns:
        The number of skills that can be used.
    """
    replies = writer.act([_extraction_prompt(episode, i) for i, episode in enumerate(episodes)])
    origin = {"policy": writer.name, "settings": dict(writer.settings)}
    kept = 0
    for episode, reply in zip(episodes, replies, strict=True):
        if skill := read_skill(reply.text).usable:
            query = str(episode.extra.get("task_description") or _first_observation(episode)).strip()
            facts = {**origin, "player": episode.policy, "source_success": episode.success}
            bank.add(episode.env, episode.task_id, skill, query, episode.category, facts)
            kept += 1
    return kept


def _extraction_prompt(episode: Trajectory, sample: int) -> Prompt:
    text = episode_text(episode, _HISTORY_CHARS)
    messages = [{"role": "system", "content": extractor_prompt()}, {"role": "user", "content": text}]
    return Prompt(messages, episode.env, episode.task_id, episode.options, "plain", 0, sample, sample)


def _first_observation(episode: Trajectory) -> str:
    return next(message["content"] for message in episode.messages if message["role"] != "system")


def skill_lift(without: Evaluated, with_skills: Evaluated) -> list[dict[str, Any]]:
    """Compares an evaluation with skills to one without, paired by task.

    Returns:
        Rows of `group`, `tasks_with_skill`, both success rates and the fields of `statistics.Paired`: all tasks, then
        tasks of types that the bank has skills of (`seen types`) and has not (`unseen types`), then every type.
    """
    plain, skilled = results.group(without.episodes), results.group(with_skills.episodes)
    shared = [task for task in plain if task in skilled]
    seen = set(with_skills.result["skills"]["categories"])
    category = {task: plain[task][0].category for task in shared}
    groups = {
        "all": shared,
        "seen types": [task for task in shared if category[task] in seen],
        "unseen types": [task for task in shared if category[task] not in seen],
        **{name: [t for t in shared if category[t] == name] for name in sorted(set(category.values())) if name},
    }
    return [_lift_row(name, tasks, plain, skilled) for name, tasks in groups.items() if tasks]


def _lift_row(name: str, tasks: Sequence[str], plain: results.ByTask, skilled: results.ByTask) -> dict[str, Any]:
    before = results.values({task: plain[task] for task in tasks}, "success")
    after = results.values({task: skilled[task] for task in tasks}, "success")
    means = [statistics.task_means(values) for values in (before, after)]
    used = sum(any("skill" in episode.extra for episode in skilled[task]) for task in tasks)
    return {
        "group": name,
        "without": sum(means[0].values()) / len(tasks),
        "with": sum(means[1].values()) / len(tasks),
        "tasks_with_skill": used,
        **asdict(statistics.paired(before, after)),
    }


def write_lift(without: Evaluated, with_skills: Evaluated, bank: SkillBank, folder: Path) -> list[dict[str, Any]]:
    """Writes `lift.json` and the page `lift.html`; returns the rows of `skill_lift`."""
    rows = skill_lift(without, with_skills)
    store.replace(folder / "lift.json", json.dumps(rows, indent=1, allow_nan=False) + "\n")
    total = rows[0]["difference"]
    interval = "" if total["low"] is None else f" [{100 * total['low']:+.1f}, {100 * total['high']:+.1f}]"
    page = viewer.Page(
        title=f"Skills on {with_skills.result['panel']['name']}",
        headline=f"Lift of skills: {100 * total['value']:+.1f}{interval} points of success",
        subtitle=f"{with_skills.result['policy']['name']}, {rows[0]['tasks_with_skill']} of {total['tasks']} tasks "
        "had a skill; skills of a task itself and of near-duplicates are never offered for it",
        runs=[viewer.Run(one.label, one.episodes, one.result) for one in (without, with_skills)],
        comparisons=[{"a": 0, "b": 1, "measure": f"success, {row['group']}", **row} for row in rows],
        skills=bank_rows(bank, with_skills.result["panel"]["env"]),
    )
    viewer.write(page, folder / "lift.html")
    return rows


def bank_lift(bank: SkillBank, skill_id: str) -> statistics.Estimate | None:
    """Returns a skill's lift in training with its interval over tasks; `None` where no use has a baseline."""
    means = statistics.task_means(bank.differences(skill_id))
    return statistics.estimate(list(means.values())) if means else None


def bank_rows(bank: SkillBank, env: str | None = None) -> list[dict[str, Any]]:
    """Returns the rows of a bank's table: the skills with the best lift, and all retired ones, up to `MOST_SKILLS`."""
    known = bank.skills(env, retired=True)
    return [_bank_row(bank, skill) for skill in known[:MOST_SKILLS]]


def _bank_row(bank: SkillBank, skill: BankedSkill) -> dict[str, Any]:
    lift = bank_lift(bank, skill.id)
    return {
        "id": skill.id,
        "name": skill.skill.name,
        "card": skill.skill.markdown(),
        "source": skill.source_task,
        "provenance": _flat(skill.provenance),
        "uses": skill.uses,
        "outcome": skill.outcome,
        "lift": asdict(lift) if lift else None,
        "retired": skill.retired,
    }


def _flat(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in ("", None))
