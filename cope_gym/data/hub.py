"""Data sets to the Hub and back, through the `huggingface_hub` client; `HF_ENDPOINT` and `HF_TOKEN` are its own.

A push replaces the data set, in one commit. What a benchmark wants kept out of plain text is refused before anything
leaves this machine.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cope_gym import trajectory
from cope_gym.data import card, rows
from cope_gym.data.card import Config
from cope_gym.errors import CopeError, InfrastructureError, InputError
from cope_gym.evaluate import panels
from cope_gym.evaluate.panels import Panel
from cope_gym.skills.bank import SkillBank
from cope_gym.trajectory import Trajectory, protected

_UNKNOWN_SPLIT = "test or unknown"  # a skill may quote the task that it comes from
_EPISODE_FILES = ("experts.jsonl", "trajectories.jsonl")


def push(
    repo: str,
    paths: Sequence[Path],
    *,
    private: bool = True,
    licence: str | None = None,
    format: str = "parquet",
    with_tokens: bool = False,
) -> str:
    """Publishes episodes and lists of tasks as a data set.

    Args:
        repo: `OWNER/NAME`; made when absent.
        paths: Trajectory files, folders with one (of `cope data experts` or `cope eval`), panel files.
        private: Whether a new data set can be seen by its owner only.
        licence: Of the data set; by default that of the benchmarks' texts.
        format: `parquet` or `jsonl`.
        with_tokens: Keep per-token records.

    Returns:
        The address of the data set.

    Raises:
        InputError: A path holds no data, or data that may not be published.
    """
    episodes, lists = _collect(paths)
    refuse_protected((episode.env, episode.split) for episode in episodes)
    parts = _parts(episodes)
    with tempfile.TemporaryDirectory(prefix="cope-push-") as scratch:
        folder = Path(scratch)
        configs = _write_episodes(folder, parts, format, with_tokens) + _write_tasks(folder, lists, format)
        licence = licence or card.licence(env for env, _ in parts)
        text = card.episodes_card(repo, licence, configs, parts)
        (folder / "README.md").write_text(text, encoding="utf-8")
        return _upload(repo, folder, private, f"{len(episodes)} episodes, {len(lists)} lists of tasks")


def pull(repo: str, folder: Path, *, config: str | None = None, revision: str | None = None) -> dict[Path, int]:
    """Fetches a data set that `push` made.

    Args:
        repo: `OWNER/NAME`.
        folder: Gets `CONFIG_SPLIT.jsonl` (trajectories) and `panels/NAME.json`.
        config: Only this configuration, e.g. `sciworld`.
        revision: Branch, tag or commit.

    Returns:
        The files written, each with its number of rows.

    Raises:
        InputError: There is no such data set, or it is of another layout.
    """
    written: dict[Path, int] = {}
    with tempfile.TemporaryDirectory(prefix="cope-pull-") as scratch:
        local = download(repo, Path(scratch), [f"data/{config or '*'}/*", "panels/*", "README.md"], revision)
        for path in sorted(local.glob("data/*/*")):
            episodes = _episodes(path, repo)
            if episodes is not None:
                target = folder / f"{path.parent.name}_{path.stem}.jsonl"
                trajectory.write(target, episodes)
                written[target] = len(episodes)
        for path in sorted(local.glob("panels/*.json")):
            target = folder / "panels" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            panel = panels.parse(path.read_text(encoding="utf-8"), path.name)
            target.write_text(panel.to_json(), encoding="utf-8")
            written[target] = len(panel.task_ids)
    if not written:
        wanted = f" in configuration '{config}'" if config else ""
        raise InputError(
            f"{repo} holds no episodes{wanted} as `cope data push` writes them; AgentGym's data sets are read by "
            "`cope data import agentgym hub:OWNER/NAME`.",
            type="bad_data",
        )
    return written


def push_skills(repo: str, bank: SkillBank, *, private: bool = True, licence: str | None = None) -> tuple[str, int]:
    """Publishes a skill bank; returns its address and the number of skills.

    Raises:
        InputError: The bank is empty, or holds skills from episodes that may not be published.
    """
    skills = bank.skills(retired=True)
    if not skills:
        raise InputError(f"{bank.path} holds no skill.", type="bad_data")
    refuse_protected((skill.env, str(skill.provenance.get("split", _UNKNOWN_SPLIT))) for skill in skills)
    counts = Counter(skill.env for skill in skills)
    table: list[rows.Row] = []
    for item in skills:
        row: rows.Row = json.loads(item.to_json())
        row |= {"name": item.skill.name, "description": item.skill.description, "markdown": item.skill.markdown()}
        row |= {key: json.dumps(row[key], ensure_ascii=False) for key in ("skill", "provenance")}
        table.append({key: row[key] for key in rows.SKILL_COLUMNS})
    with tempfile.TemporaryDirectory(prefix="cope-push-") as scratch:
        folder = Path(scratch)
        config = Config("skills", {"train": "data/skills/train.parquet"}, rows.SKILL_COLUMNS)
        rows.write(folder / config.files["train"], table, config.columns, "parquet")
        text = card.skills_card(repo, licence or card.licence(counts), config, counts)
        (folder / "README.md").write_text(text, encoding="utf-8")
        return _upload(repo, folder, private, f"{len(skills)} skills"), len(skills)


def pull_skills(repo: str, bank: SkillBank, *, revision: str | None = None) -> int:
    """Adds a published bank's skills to a bank and returns how many were read.

    Raises:
        InputError: There is no such data set, or it holds no skills.
    """
    with tempfile.TemporaryDirectory(prefix="cope-pull-") as scratch:
        local = download(repo, Path(scratch), ["data/skills/*"], revision)
        lines = [
            json.dumps({**row, "skill": json.loads(row["skill"]), "provenance": json.loads(row["provenance"])})
            for path in sorted(local.glob("data/skills/*"))
            for row in rows.read(path)
        ]
    if not lines:
        raise InputError(f"{repo} holds no skills as `cope skills push` writes them.", type="bad_data")
    return bank.load(lines)


def refuse_protected(origins: Iterable[tuple[str, str]]) -> None:
    """Refuses to publish what a benchmark wants kept out of plain text.

    Raises:
        InputError: Some of these (environment, split) pairs are protected; the message counts them.
    """
    counts = Counter(origin for origin in origins if protected(*origin))
    if counts:
        found = ", ".join(f"{count} of {env} {split}".rstrip() for (env, split), count in counts.items())
        raise InputError(
            f"Nothing was published: {found} may not be published in plain text, at their benchmark's request. Leave "
            "these files out; results (`result.json`) hold no texts and may be published.",
            type="protected",
        )


def download(repo: str, folder: Path, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Fetches the files of a Hub data set that match.

    Raises:
        InputError: There is no such data set, or it may not be read.
        InfrastructureError: The Hub cannot be reached.
    """
    with _hub(repo) as hub:
        hub.snapshot_download(
            repo, repo_type="dataset", revision=revision, local_dir=folder, allow_patterns=list(patterns)
        )
    return folder


def _upload(repo: str, folder: Path, private: bool, message: str) -> str:
    with _hub(repo) as hub:
        api = hub.HfApi()
        url = api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo,
            repo_type="dataset",
            folder_path=folder,
            delete_patterns=["data/*", "panels/*"],
            commit_message=message,
        )
    return str(url)


@contextmanager
def _hub(repo: str) -> Generator[Any]:
    """Gives `huggingface_hub`; its errors leave as one sentence with the fix in it."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise InputError(f"'{repo}' is not the name of a data set: write OWNER/NAME.", type="bad_repo")
    try:
        import huggingface_hub as hub  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("The Hub needs the `data` extra: pip install 'cope-gym[data]'.", type="no_extra") from error
    import httpx  # pyright: ignore[reportMissingImports]

    try:
        yield hub
    except hub.errors.RevisionNotFoundError as error:
        raise InputError(f"{repo} has no such revision.", type="bad_repo") from error
    except hub.errors.RepositoryNotFoundError as error:
        raise InputError(
            f"The Hub shows no data set {repo}: check the name, and log in with `hf auth login` if it is private.",
            type="bad_repo",
        ) from error
    except hub.errors.HfHubHTTPError as error:
        raise _refused(repo, error) from error
    except (httpx.HTTPError, OSError) as error:
        raise InfrastructureError(
            f"The Hub cannot be reached ({error}); try again.", type="hub", retryable=True
        ) from error


def _refused(repo: str, error: Any) -> CopeError:
    status = error.response.status_code
    said = getattr(error, "server_message", None) or f"status {status}"
    if status in (401, 403):
        return InputError(
            f"The Hub refuses {repo} ({said}): log in with `hf auth login`, or set HF_TOKEN to one that may write.",
            type="bad_repo",
        )
    if status < 500:
        return InputError(f"The Hub refuses {repo}: {said}.", type="bad_repo")
    return InfrastructureError(f"The Hub failed ({said}); try again.", type="hub", retryable=True)


def _collect(paths: Sequence[Path]) -> tuple[list[Trajectory], list[Panel]]:
    episodes: list[Trajectory] = []
    lists: list[Panel] = []
    for path in paths:
        if path.suffix == ".json":
            lists.append(panels.load(str(path)))
            continue
        file = _file_of(path)
        try:
            found = list(trajectory.read(file))
        except (ValueError, UnicodeDecodeError) as error:
            raise InputError(f"{error}.", type="bad_data") from error
        if not found:
            raise InputError(f"{file} holds no episode.", type="bad_data")
        episodes += found
    return episodes, lists


def _file_of(path: Path) -> Path:
    if path.is_dir():
        for name in _EPISODE_FILES:
            if (path / name).is_file():
                return path / name
        raise InputError(f"{path} holds neither {' nor '.join(_EPISODE_FILES)}; name files.", type="bad_data")
    if not path.is_file():
        raise InputError(f"There is no {path}.", type="bad_data")
    return path


def _parts(episodes: Iterable[Trajectory]) -> dict[card.Part, list[Trajectory]]:
    parts: dict[card.Part, list[Trajectory]] = {}
    for episode in episodes:
        parts.setdefault((episode.env, split_name(episode.split)), []).append(episode)
    return dict(sorted(parts.items()))


def split_name(split: str) -> str:
    """Returns a split as the Hub can name it: `retail-test` → `retail_test`."""
    return re.sub(r"\W", "_", split) or "train"


def _write_episodes(
    folder: Path, parts: Mapping[card.Part, Sequence[Trajectory]], format: str, with_tokens: bool
) -> list[Config]:
    files: dict[str, dict[str, str]] = {}
    for (env, split), episodes in parts.items():
        path = f"data/{env}/{split}.{format}"
        table = (rows.to_row(episode, with_tokens) for episode in episodes)
        rows.write(folder / path, table, rows.COLUMNS, format)
        files.setdefault(env, {})[split] = path
    return [Config(env, of_env, rows.COLUMNS) for env, of_env in files.items()]


def _write_tasks(folder: Path, lists: Sequence[Panel], format: str) -> list[Config]:
    configs: list[Config] = []
    for panel in lists:
        split = split_name(panel.split)
        path = f"data/{panel.name}/{split}.{format}"
        options = json.dumps(dict(panel.options))
        table = ({"env": panel.env, "task_id": id, "split": panel.split, "options": options} for id in panel.task_ids)
        rows.write(folder / path, table, rows.TASK_COLUMNS, format)
        (folder / "panels").mkdir(exist_ok=True)
        (folder / "panels" / f"{panel.name}.json").write_text(panel.to_json(), encoding="utf-8")
        configs.append(Config(panel.name, {split: path}, rows.TASK_COLUMNS))
    return configs


def _episodes(path: Path, repo: str) -> list[Trajectory] | None:
    """Returns the episodes of a file, `None` where it holds something else (a list of tasks, skills)."""
    try:
        table: Iterator[rows.Row] = rows.read(path)
        found = list(table)
        if not found or "messages" not in found[0]:
            return None
        return [rows.from_row(row) for row in found]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{repo}, {path.name}: not episodes of this schema ({error}).", type="bad_data") from error
