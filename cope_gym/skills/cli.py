"""The commands `cope skills` and `cope retrieval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table

from cope_gym.cli.common import BaseUrl, Split, out, progress
from cope_gym.env import CopeEnv
from cope_gym.errors import InputError
from cope_gym.skills.bank import BankedSkill, SkillBank
from cope_gym.skills.documents import task_documents
from cope_gym.skills.retrieval import DEFAULT_ENCODER, TaskIndex
from cope_gym.tasklist import tasks

skills = typer.Typer(help="A bank of skills with what each was seen to be worth.", no_args_is_help=True)
retrieval = typer.Typer(help="Find similar tasks, never the task itself.", no_args_is_help=True)

Bank = Annotated[Path, typer.Option("--bank", help="File of the bank, e.g. runs/NAME/skills.sqlite.")]


@skills.command("list")
def list_(
    bank: Bank,
    env: Annotated[str | None, typer.Option(help="Only those of one environment.")] = None,
    retired: Annotated[bool, typer.Option("--retired", help="Show retired ones too.")] = False,
) -> None:
    """Lists skills, best lift first."""
    table = Table("id", "env", "source", "skill", "uses", "outcome", "lift", "retired")
    for item in _open(bank).skills(env, retired):
        numbers = [str(item.uses), _number(item.outcome), _number(item.lift, sign=True)]
        table.add_row(item.id, item.env, item.source_task, item.skill.name, *numbers, item.retired or "")
    out.print(table)


@skills.command()
def show(skill_id: Annotated[str, typer.Argument(help="Id, see `cope skills list`.")], bank: Bank) -> None:
    """Shows a skill as a solver sees it, and where it came from."""
    item = _get(bank, skill_id)
    out.print(Markdown(item.skill.markdown()))
    facts = {"env": item.env, "source task": item.source_task, **item.provenance}
    facts |= {"uses": item.uses, "outcome": _number(item.outcome), "lift": _number(item.lift, sign=True)}
    out.print("\n" + "\n".join(f"{name}: {value}" for name, value in facts.items()), markup=False)


@skills.command()
def retire(
    skill_id: Annotated[str, typer.Argument(help="Id, see `cope skills list`.")],
    bank: Bank,
    reason: Annotated[str, typer.Option(help="Kept with the skill.")] = "by hand",
) -> None:
    """Takes a skill out of use; its record stays."""
    _get(bank, skill_id)
    _open(bank).retire(skill_id, reason)


@skills.command()
def export(file: Annotated[Path, typer.Argument(help="JSON Lines file to write.")], bank: Bank) -> None:
    """Writes all skills to a file that `cope skills import` and `datasets` read."""
    lines = list(_open(bank).export())
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    out.print(f"{len(lines)} skills in {file}")


@skills.command("import")
def import_(file: Annotated[Path, typer.Argument(help="File of `cope skills export`.")], bank: Bank) -> None:
    """Adds exported skills to a bank, which is made where there is none."""
    if not file.is_file():
        raise _bad(f"There is no file {file}.")
    try:
        count = SkillBank(bank).load(file.read_text(encoding="utf-8").splitlines())
    except ValueError as error:
        raise _bad(f"{file}: {error}.") from error
    out.print(f"{count} skills read into {bank}")


@retrieval.command()
def build(
    file: Annotated[Path, typer.Argument(help="Index file to write.")],
    env: Annotated[str, typer.Option(help="Environment whose tasks are indexed.")],
    split: Split = None,
    category: Annotated[list[str] | None, typer.Option(help="Only tasks of this category; again for more.")] = None,
    encoder: Annotated[
        str, typer.Option(help="`minilm`, `bm25`, or a sentence-transformers model.")
    ] = DEFAULT_ENCODER,
    base_url: BaseUrl = None,
) -> None:
    """Reads every task's description from the environment and indexes it."""
    wanted = [t.id for t in tasks(env, split, base_url=base_url).infos if category is None or t.category in category]
    if not wanted:
        raise _bad(f"No task of {env} is left; `cope tasks {env}` lists them with their categories.")
    with progress() as shown:
        bar = shown.add_task("Reading tasks", total=len(wanted))
        made = task_documents(lambda: CopeEnv(env, base_url=base_url), wanted, progress=lambda: shown.advance(bar))
    index = TaskIndex(made, encoder)
    index.save(file)
    out.print(f"{len(made)} tasks in {file} ({index.encoder}, digest {index.digest[:12]})")


@retrieval.command()
def query(
    file: Annotated[Path, typer.Argument(help="File of `cope retrieval build`.")],
    text: Annotated[str, typer.Argument(help="Task text, or the id of an indexed task.")],
    k: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
) -> None:
    """Shows the most similar tasks; the task itself and near-duplicates are left out."""
    index = TaskIndex.load(file)
    known = {document.id: document for document in index.documents}.get(text)
    hits = index.search(known.text, k, known.id) if known else index.search(text, k)
    table = Table("score", "task", "text")
    for hit in hits:
        table.add_row(f"{hit.score:.3f}", hit.document.id, hit.document.text[:100])
    out.print(table)


def _open(path: Path) -> SkillBank:
    if not path.is_file():
        raise _bad(f"There is no skill bank {path}; a run with `skills: true` writes one, or `cope skills import`.")
    try:
        return SkillBank(path)
    except ValueError as error:
        raise _bad(f"{error}.") from error


def _get(bank: Path, skill_id: str) -> BankedSkill:
    try:
        return _open(bank).get(skill_id)
    except KeyError as error:
        raise _bad(f"{error.args[0]}.") from error


def _number(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{value:+.3f}" if sign else f"{value:.3f}"


def _bad(detail: str) -> InputError:
    return InputError(detail, type="bad_request")
