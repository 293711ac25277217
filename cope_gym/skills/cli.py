"""The commands `cope skills` and `cope retrieval`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table

from cope_gym.cli.common import BaseUrl, Split, err, out, progress
from cope_gym.env import CopeEnv
from cope_gym.errors import InputError
from cope_gym.evaluate import policies
from cope_gym.evaluate.cli import pairs
from cope_gym.evaluate.runs import recorded
from cope_gym.evaluate.skills import bank_lift, extract_skills
from cope_gym.skills.bank import BankedSkill, SkillBank, open_bank
from cope_gym.skills.documents import task_documents
from cope_gym.skills.remote import RetrievalServer
from cope_gym.skills.retrieval import DEFAULT_ENCODER, TaskIndex
from cope_gym.tasklist import tasks

skills = typer.Typer(help="A bank of skills with what each was seen to be worth.", no_args_is_help=True)
retrieval = typer.Typer(help="Find similar tasks, never the task itself.", no_args_is_help=True)

_SKILL_TOKENS = 1536
Bank = Annotated[Path, typer.Option("--bank", help="File of the bank, e.g. runs/NAME/skills.sqlite.")]


@skills.command("list")
def list_(
    bank: Bank,
    env: Annotated[str | None, typer.Option(help="Only those of one environment.")] = None,
    retired: Annotated[bool, typer.Option("--retired", help="Show retired ones too.")] = False,
) -> None:
    """Lists skills, best lift first."""
    table = Table("id", "env", "source", "skill", "uses", "outcome", "lift", "retired")
    for item in open_bank(bank).skills(env, retired):
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
    if (lift := bank_lift(open_bank(bank), skill_id)) and lift.low is not None:
        facts["lift by task"] = f"{lift.value:+.3f} [{lift.low:+.3f}, {lift.high:+.3f}], {lift.tasks} tasks"
    if item.retired:
        facts["retired"] = item.retired
    out.print("\n" + "\n".join(f"{name}: {value}" for name, value in facts.items()), markup=False)


@skills.command()
def retire(
    skill_id: Annotated[str, typer.Argument(help="Id, see `cope skills list`.")],
    bank: Bank,
    reason: Annotated[str, typer.Option(help="Kept with the skill.")] = "by hand",
) -> None:
    """Takes a skill out of use; its record stays."""
    _get(bank, skill_id)
    open_bank(bank).retire(skill_id, reason)


@skills.command()
def extract(
    path: Annotated[Path, typer.Argument(help="Episodes to learn from: an evaluation, a run, or a file.")],
    policy: Annotated[str, typer.Option(help="Who writes the skills, KIND:MODEL as for `cope eval`.")],
    bank: Bank,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of the policy; again for more.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many episodes.")] = None,
) -> None:
    """Has a model write one skill an episode, greedily, and keeps those that can be read and pass the audit."""
    episodes = [episode for episode in recorded(path) if episode.error is None and len(episode.messages) > 1][:limit]
    if not episodes:
        raise _bad(f"{path} holds no episode to learn from.")
    greedy = {"temperature": 0.0, "max_tokens": _SKILL_TOKENS, "max_turn_tokens": _SKILL_TOKENS}
    spec = policies.PolicySpec("", episodes[0].env, lambda task, options: None, pairs(settings), greedy)
    kept = 0
    with closing(policies.make(policy, spec)) as writer, progress() as shown:
        bar = shown.add_task("Extracting", total=len(episodes))
        for start in range(0, len(episodes), writer.batch_size):
            kept += extract_skills(writer, episodes[start : start + writer.batch_size], SkillBank(bank))
            shown.advance(bar, min(writer.batch_size, len(episodes) - start))
    out.print(
        f"{kept} skills of {len(episodes)} episodes are in {bank}; the rest could not be read or failed the audit."
    )


@skills.command()
def export(file: Annotated[Path, typer.Argument(help="JSON Lines file to write.")], bank: Bank) -> None:
    """Writes all skills to a file that `cope skills import` and `datasets` read."""
    lines = list(open_bank(bank).export())
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


@retrieval.command()
def serve(
    file: Annotated[Path, typer.Argument(help="File of `cope retrieval build`.")],
    host: Annotated[str, typer.Option(help="Address; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port, 0 for any free one.")] = 8421,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token (or set COPE_TOKEN).")] = None,
) -> None:
    """Serves an index over HTTP, for runs on several machines: give them `skill_index: http://HOST:PORT`."""
    token = token_file.read_text(encoding="utf-8").strip() if token_file else os.environ.get("COPE_TOKEN")
    with RetrievalServer(TaskIndex.load(file), host, port, token or None) as server:
        err.print(f"{len(server.index.documents)} tasks on http://{host}:{server.server_address[1]}")
        server.serve_forever()


def _get(bank: Path, skill_id: str) -> BankedSkill:
    try:
        return open_bank(bank).get(skill_id)
    except KeyError as error:
        raise _bad(f"{error.args[0]}.") from error


def _number(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{value:+.3f}" if sign else f"{value:.3f}"


def _bad(detail: str) -> InputError:
    return InputError(detail, type="bad_request")
