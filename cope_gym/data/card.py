"""The card of a data set: what it holds, where it comes from, and what it does not show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cope_gym import __version__
from cope_gym.data import rows
from cope_gym.trajectory import SCHEMA_VERSION, Trajectory

LICENCES = {"sciworld": "apache-2.0", "alfworld": "mit", "tau2": "mit", "mind2web": "cc-by-4.0"}
"""Licence of what an environment says, where its benchmark gives one that covers its texts."""

_NOTES = {
    "sciworld": "ScienceWorld, Apache-2.0, https://github.com/allenai/ScienceWorld",
    "alfworld": "ALFWorld, MIT, https://github.com/alfworld/alfworld",
    "tau2": "τ²-bench, MIT, https://github.com/sierra-research/tau2-bench",
    "webshop": "WebShop, code MIT, https://github.com/princeton-nlp/WebShop. The product texts of its published "
    "catalogues were scraped by its authors and have no licence of their own; those of `synthetic-N` catalogues are "
    "made up.",
    "mind2web": "Mind2Web, CC BY 4.0, https://osu-nlp-group.github.io/Mind2Web. Its test splits are withheld.",
}

Part = tuple[str, str]


@dataclass(frozen=True)
class Config:
    """One configuration of a data set.

    Attributes:
        name: Name for `load_dataset(repo, name)`.
        files: Split → path in the repository.
        columns: Columns of all its files.
    """

    name: str
    files: Mapping[str, str]
    columns: Mapping[str, Any]


def licence(envs: Iterable[str]) -> str:
    """Returns the licence that covers all of these environments' texts, `other` where there is not one."""
    found = {LICENCES.get(env, "other") for env in envs}
    return found.pop() if len(found) == 1 else "other"


def front_matter(name: str, licence: str, configs: Sequence[Config], tags: Sequence[str]) -> str:
    """Returns the machine-readable head of a card. JSON is YAML, so it needs no YAML library."""
    head = {
        "pretty_name": name,
        "license": licence,
        "task_categories": ["text-generation"],
        "tags": ["cope-gym", "agent", "reinforcement-learning", *tags],
        "configs": [
            {
                "config_name": config.name,
                "data_files": [{"split": split, "path": path} for split, path in config.files.items()],
            }
            for config in configs
        ],
        "dataset_info": [
            {"config_name": config.name, "features": rows.features(config.columns)} for config in configs
        ],
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    return "\n".join(["---", *lines, "---", ""])


def episodes_card(
    repo: str, licence: str, configs: Sequence[Config], parts: Mapping[Part, Sequence[Trajectory]]
) -> str:
    """Returns the card of a data set of episodes (and lists of tasks)."""
    episodes = [episode for part in parts.values() for episode in part]
    envs = sorted({episode.env for episode in episodes})
    sections = [
        front_matter(repo.split("/")[-1], licence, configs, [*envs, "trajectories"]),
        f"# {repo.split('/')[-1]}\n",
        "Episodes of language agents in interactive tasks, one a row, written by "
        f"[CoPE Gym](https://pypi.org/project/cope-gym/) {__version__} (schema {SCHEMA_VERSION}).\n",
        _reading(repo, configs),
        *(["## Counts\n", _counts(parts)] if parts else []),
        *(["## Provenance\n", _provenance(episodes)] if episodes else []),
        "## Columns\n",
        "`messages` is the conversation, `turns` the agent's actions in it: `turns[i].message` is the index of the "
        "message, `action_span` the characters of the executed action in it. `options`, `versions`, `extra`, `error` "
        "and `tokens` are JSON text. An episode with `error` was ended by a fault of the service and has no score.\n",
        "## Licences\n",
        "\n".join(f"* {_NOTES.get(env, env + ': see its benchmark')}" for env in envs) + "\n",
        "## Limits\n",
        "Scores belong to the versions, data digests and options in each row. Episodes that were selected (experts "
        "keep solved ones only) say nothing about how often a policy succeeds.\n",
    ]
    return "\n".join(sections)


def skills_card(repo: str, licence: str, config: Config, counts: Mapping[str, int]) -> str:
    """Returns the card of a skill bank."""
    lines = "\n".join(f"| {env} | {count} |" for env, count in counts.items())
    sections = [
        front_matter(repo.split("/")[-1], licence, [config], ["skills"]),
        f"# {repo.split('/')[-1]}\n",
        "Skills that a language agent extracted from its own episodes, written by "
        f"[CoPE Gym](https://pypi.org/project/cope-gym/) {__version__}.\n",
        f"| environment | skills |\n|---|---|\n{lines}\n",
        f"```bash\ncope skills pull {repo} --bank skills.sqlite\n```\n",
        "## Limits\n",
        "`lift` was measured where the skill was made, by the policy of that run; `source_task` is the task it comes "
        "from and must not be offered it in an evaluation.\n",
    ]
    return "\n".join(sections)


def _reading(repo: str, configs: Sequence[Config]) -> str:
    first = configs[0]
    split = next(iter(first.files))
    return (
        "## Reading\n\n```python\nfrom datasets import load_dataset\n\n"
        f'episodes = load_dataset("{repo}", "{first.name}", split="{split}")\n```\n\n'
        f"```bash\ncope data pull {repo} --out data\n```\n"
    )


def _counts(parts: Mapping[Part, Sequence[Trajectory]]) -> str:
    lines = [
        "| environment | split | episodes | tasks | solved | turns | faults | policies |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (env, split), episodes in parts.items():
        fine = [episode for episode in episodes if episode.error is None]
        numbers = [
            len(episodes),
            len({episode.task_id for episode in episodes}),
            sum(episode.success for episode in fine),
            sum(len(episode.turns) for episode in fine),
            len(episodes) - len(fine),
        ]
        policies = ", ".join(sorted({episode.policy for episode in episodes}))
        lines.append(f"| {env} | {split} | {' | '.join(map(str, numbers))} | {policies} |")
    return "\n".join(lines) + "\n"


def _provenance(episodes: Sequence[Trajectory]) -> str:
    known: dict[str, None] = {}
    for episode in episodes:
        known[json.dumps([episode.env, episode.options, episode.versions], ensure_ascii=False, sort_keys=True)] = None
    lines: list[str] = []
    for key in known:
        env, options, versions = json.loads(key)
        stated = json.dumps(versions, ensure_ascii=False) if versions else "versions not recorded"
        lines.append(f"* {env}, options {json.dumps(options, ensure_ascii=False)}: `{stated}`")
    return "\n".join(lines) + "\n"
