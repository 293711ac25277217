"""The commands `cope data` and, for skill banks, `cope skills push` and `pull`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from cope_gym.cli.common import BaseUrl, Env, FirstChars, LaterChars, Options, Split, err, out, progress, waiting
from cope_gym.data import agentgym, experts, hub
from cope_gym.data.rows import FORMATS
from cope_gym.errors import InputError
from cope_gym.evaluate import panels
from cope_gym.evaluate.cli import pairs
from cope_gym.evaluate.service import Service
from cope_gym.server import connect
from cope_gym.skills.bank import SkillBank
from cope_gym.tasklist import short_name
from cope_gym.tasklist import tasks as task_list
from cope_gym.trajectory import Trajectory, write

data = typer.Typer(help="Episodes and tasks as data sets.", no_args_is_help=True)
imports = typer.Typer(help="Bring in data that others published.", no_args_is_help=True)
data.add_typer(imports, name="import")

Repo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Data set on the Hub.")]
Private = Annotated[bool, typer.Option("--private/--public", help="Who sees a data set that is made anew.")]
Licence = Annotated[str | None, typer.Option(help="Of the data set; by default that of the benchmarks' texts.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit.")]
_SHOWN = 5  # tasks that were not kept


@data.command("experts")
def collect_experts(
    env: Env,
    split: Split = None,
    task: Annotated[list[str] | None, typer.Option(help="Only these task ids; again for more.")] = None,
    panel: Annotated[str | None, typer.Option(help="The tasks and options of a panel.")] = None,
    category: Annotated[list[str] | None, typer.Option(help="Only these categories; again for more.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder; by default experts/ENV_SPLIT.")] = None,
    options: Options = None,
    system_prompt: Annotated[Path | None, typer.Option(help="File; by default the environment's prompt.")] = None,
    first_observation_chars: FirstChars = None,
    observation_chars: LaterChars = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at the same time.")] = 4,
    base_url: BaseUrl = None,
) -> None:
    """Play a benchmark's own solutions and keep the solved episodes. An interrupted run continues."""
    name = short_name(env)
    service = Service(name, connect(name, base_url))
    chosen = panels.load(panel) if panel else None
    with waiting(f"asking for the tasks of {name}"):
        listed = task_list(name, chosen.split if chosen else split, base_url=base_url)
    ids = [*(task or []), *(chosen.task_ids if chosen else ())]
    plan = experts.Plan(
        listed.split,
        experts.choose(listed.infos, category or [], ids, limit),
        {**(chosen.options if chosen else {}), **pairs(options)},
        _text(system_prompt),
        (first_observation_chars, observation_chars),
        concurrency,
    )
    folder = folder or Path("experts") / f"{name}_{plan.split}"
    with progress() as bar:
        line = bar.add_task(f"experts of {name}", total=len(plan.task_ids))

        def show(_: Trajectory, done: int, planned: int) -> None:
            bar.update(line, completed=done, total=planned)

        collected = experts.collect(service, plan, folder, show)
    _show(collected, f"{name} {plan.split}")
    if collected.errors:
        err.print(f"[yellow]{collected.errors} episodes failed by infrastructure; the same command tries again.[/]")
        raise typer.Exit(3)


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise InputError(f"There is no file {path}.", type="bad_option")
    return path.read_text(encoding="utf-8").strip()


def _show(collected: experts.Collected, title: str) -> None:
    kinds = (experts.KEPT, experts.FAILED, experts.NO_SOLUTION, experts.ERROR)
    table = Table("category", "tasks", *kinds, title=title)
    for category, counts in sorted(collected.outcomes.items()):
        table.add_row(category, str(counts.total()), *(str(counts[kind]) for kind in kinds))
    out.print(table)
    for task, why in collected.lost[:_SHOWN]:
        out.print(f"[dim]{escape(task)}: {escape(why)}[/]")
    if len(collected.lost) > _SHOWN:
        out.print(f"[dim]and {len(collected.lost) - _SHOWN} more that were not kept[/]")
    out.print(f"{collected.kept} episodes in {collected.file}", soft_wrap=True)


@imports.command("agentgym")
def import_agentgym(
    source: Annotated[str, typer.Argument(help="JSON file or folder, or hub:OWNER/NAME, e.g. of AgentTraj-L.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("agentgym"),
    split: Annotated[str, typer.Option(help="Split that the rows belong to.")] = "train",
    action_format: Annotated[str, typer.Option(help="How actions are written there.")] = "react",
    revision: Revision = None,
) -> None:
    """Read AgentGym's conversations as episodes, and its id files as lists of tasks."""
    if source.startswith("hub:"):
        with TemporaryDirectory(prefix="cope-import-") as scratch, waiting(f"fetching {source[4:]}"):
            local = hub.download(source[4:], Path(scratch), ["*.json", "*.jsonl"], revision)
            found = agentgym.load(local, split, action_format)
    else:
        found = agentgym.load(Path(source), split, action_format)
    by_env: dict[str, list[Trajectory]] = {}
    for episode in found.episodes:
        by_env.setdefault(episode.env, []).append(episode)
    for env, episodes in sorted(by_env.items()):
        path = folder / f"{env}_{split}.jsonl"
        write(path, episodes)
        actions = sum(bool(turn.action) for episode in episodes for turn in episode.turns)
        turns = sum(len(episode.turns) for episode in episodes)
        out.print(f"{path}: {len(episodes)} episodes, {turns} turns, {actions} with an action", soft_wrap=True)
    for panel in found.panels(f"agentgym_{split}", split):
        path = folder / f"{panel.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(panel.to_json(), encoding="utf-8")
        out.print(f"{path}: {len(panel.task_ids)} tasks", soft_wrap=True)
    for why, count in found.skipped.items():
        out.print(f"[yellow]{count} rows left out: {escape(why)}[/]")


@data.command()
def push(
    repo: Repo,
    paths: Annotated[list[Path], typer.Argument(help="Trajectory files, folders that hold one, panel files.")],
    private: Private = True,
    licence: Licence = None,
    format: Annotated[str, typer.Option(help="parquet or jsonl.")] = "parquet",
    with_tokens: Annotated[bool, typer.Option("--with-tokens", help="Keep per-token records.")] = False,
) -> None:
    """Publish episodes and lists of tasks with a card. It replaces what the data set held."""
    if format not in FORMATS:
        raise InputError(f"--format is {' or '.join(FORMATS)}, not '{format}'.", type="bad_option")
    with waiting(f"pushing to {repo}"):
        url = hub.push(repo, paths, private=private, licence=licence, format=format, with_tokens=with_tokens)
    out.print(url, soft_wrap=True)


@data.command()
def pull(
    repo: Repo,
    folder: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("data"),
    config: Annotated[str | None, typer.Option(help="Only this configuration, e.g. an environment.")] = None,
    revision: Revision = None,
) -> None:
    """Fetch a data set of `cope data push` as trajectory and panel files."""
    with waiting(f"fetching {repo}"):
        written = hub.pull(repo, folder, config=config, revision=revision)
    _list(list(written.items()))


def _list(written: Sequence[tuple[Path, int]]) -> None:
    for path, count in written:
        out.print(f"{path}: {count} rows", soft_wrap=True)


def push_skills(
    repo: Repo,
    bank: Annotated[Path, typer.Option("--bank", help="File of the bank.")],
    private: Private = True,
    licence: Licence = None,
) -> None:
    """Publishes a bank's skills as a data set with a card."""
    if not bank.is_file():
        raise InputError(f"There is no skill bank {bank}.", type="bad_request")
    with waiting(f"pushing to {repo}"):
        url, count = hub.push_skills(repo, SkillBank(bank), private=private, licence=licence)
    out.print(f"{count} skills: {url}", soft_wrap=True)


def pull_skills(
    repo: Repo,
    bank: Annotated[Path, typer.Option("--bank", help="File of the bank; made where there is none.")],
    revision: Revision = None,
) -> None:
    """Adds the skills of a published bank."""
    with waiting(f"fetching {repo}"):
        count = hub.pull_skills(repo, SkillBank(bank), revision=revision)
    out.print(f"{count} skills read into {bank}", soft_wrap=True)
