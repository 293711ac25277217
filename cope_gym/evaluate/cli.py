"""The commands `cope eval`, `cope view` and `cope compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cope_gym.cli.common import BaseUrl, FirstChars, LaterChars, Options, err, out
from cope_gym.errors import InputError
from cope_gym.evaluate import panels, policies, report, runs
from cope_gym.evaluate.compare import compare as run_comparison
from cope_gym.evaluate.runner import Evaluation, conclude
from cope_gym.evaluate.runner import evaluate as run_evaluation
from cope_gym.evaluate.scripted import LISTS_ON_REQUEST
from cope_gym.evaluate.service import Service
from cope_gym.evaluate.skills import write_lift
from cope_gym.server import connect
from cope_gym.skills.bank import SkillBank, open_bank
from cope_gym.skills.lookup import BankLookup
from cope_gym.skills.retrieval import DEFAULT_ENCODER
from cope_gym.trajectory import Trajectory

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of the policy; again for more.")
]


def evaluate(
    panel: Annotated[
        str, typer.Option(help="Shipped panel (`cope panel list`), panel file, or ENV/SPLIT for all tasks of a split.")
    ],
    policy: Annotated[str, typer.Option(help="KIND or KIND:MODEL, e.g. gold, random, openai:gpt-x, hf:PATH.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder; by default evaluations/PANEL/POLICY.")] = None,
    settings: Settings = None,
    options: Options = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Episodes a task.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of environments and policy.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at the same time.")] = 8,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turns of an episode.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Published protocol; `cope panel protocols` lists them.")
    ] = None,
    system_prompt: Annotated[
        Path | None, typer.Option(help="File with the system prompt; by default the environment's own.")
    ] = None,
    first_observation_chars: FirstChars = None,
    observation_chars: LaterChars = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Play nothing; make a result of what the folder holds.")
    ] = False,
    skills: Annotated[
        Path | None,
        typer.Option(help="Skill bank: play all without and with its skills, and report their lift."),
    ] = None,
    encoder: Annotated[str, typer.Option(help="Finds the skills: `minilm`, `bm25`, or a model.")] = DEFAULT_ENCODER,
    base_url: BaseUrl = None,
) -> None:
    """Evaluates a policy on a panel. An interrupted run continues with the same command."""
    chosen = _tasks(panel, base_url)
    if options:
        chosen = replace(chosen, options={**chosen.options, **pairs(options)}, observations={}).sealed()
    chosen = chosen.head(limit) if limit else chosen
    folder = folder or Path("evaluations") / chosen.name.replace("/", "-") / policy.replace("/", "-").replace(":", "-")
    if allow_partial:
        result = conclude(folder, allow_partial=True)
    else:
        try:
            chars = (first_observation_chars, observation_chars)
            how = _How(samples, seed, concurrency, max_turns, protocol, _text(system_prompt), chars)
            if skills:
                bank = open_bank(skills)
                both = replace(how, skills=BankLookup(bank, chosen.env, encoder))
                _with_skills(chosen, policy, folder, pairs(settings), both, base_url, bank)
                return
            result = _play(chosen, policy, folder, pairs(settings), how, base_url)
        except KeyboardInterrupt:
            err.print("Interrupted. What was played is kept; the same command continues.")
            raise
    out.print(_table(result))
    out.print(f"Result: {folder / 'result.json'}   Look at it: cope view {folder}")
    _mention_errors(result)


def _mention_errors(*results: Mapping[str, Any]) -> None:
    errors = [error for result in results for error in result["errors"]]
    faults = [error for error in errors if error["type"] != policies.NO_GOLD]
    if unsolved := {error["task_id"] for error in errors if error["type"] == policies.NO_GOLD}:
        share = "A task has" if len(unsolved) == 1 else f"{len(unsolved)} tasks have"
        err.print(f"{share} no gold solution: listed under `errors`, in no number.", style="yellow", soft_wrap=True)
    if faults:
        share = "An episode" if len(faults) == 1 else f"{len(faults)} episodes"
        last = faults[-1].get("detail") or "no reason was recorded"
        sentence = (
            f"{share} could not be played and will be tried again by the same command, never scored; last: {last}"
        )
        err.print(sentence, style="yellow", markup=False, soft_wrap=True)
        raise typer.Exit(3)


@dataclass(frozen=True)
class _How:
    samples: int | None
    seed: int
    concurrency: int
    max_turns: int | None
    protocol: str | None
    system: str | None
    chars: tuple[int | None, int | None]
    skills: BankLookup | None = None


def _with_skills(
    chosen: panels.Panel,
    policy: str,
    folder: Path,
    settings: Mapping[str, Any],
    how: _How,
    base_url: str | None,
    bank: SkillBank,
) -> None:
    without, with_skills = folder / "without_skills", folder / "with_skills"
    results = [
        _play(chosen, policy, without, settings, replace(how, skills=None), base_url),
        _play(chosen, policy, with_skills, settings, how, base_url),
    ]
    rows = write_lift(runs.evaluation(without), runs.evaluation(with_skills), bank, folder)
    out.print(_lift_table(chosen.name, rows))
    out.print(f"Result: {folder / 'lift.json'}   Look at it: {(folder / 'lift.html').resolve().as_uri()}")
    _mention_errors(*results)


def _lift_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("tasks", "number", "with a skill", "without", "with", "lift", "p", title=f"Skills on {name}")
    for row in rows:
        rates = [f"{row[arm]:.3f}" for arm in ("without", "with")]
        lift, p = _with_interval(row["difference"], "+"), _p_value(row["p_value"])
        table.add_row(row["group"], str(row["difference"]["tasks"]), str(row["tasks_with_skill"]), *rates, lift, p)
    return table


def _tasks(panel: str, base_url: str | None) -> panels.Panel:
    env, slash, split = panel.partition("/")
    if not slash or panel.endswith(".json"):
        return panels.load(panel)
    return Service(env, connect(env, base_url)).whole(split)


def _play(
    chosen: panels.Panel, policy: str, folder: Path, settings: Mapping[str, Any], how: _How, base_url: str | None
) -> dict[str, Any]:
    admissible = {"admissible_actions": True} if policy == "random" and chosen.env in LISTS_ON_REQUEST else {}
    service = Service(chosen.env, connect(chosen.env, base_url), admissible)
    protocol = service.protocol(how.protocol)
    rules = service.rules(how.max_turns, how.system, protocol, how.chars)
    tokens = protocol.max_tokens
    sampling = {"temperature": protocol.temperature, "max_tokens": tokens, "max_turn_tokens": tokens}
    spec = policies.PolicySpec("", chosen.env, service.gold, settings, sampling)
    with closing(policies.make(policy, spec)) as player:
        evaluation = Evaluation(
            panel=chosen,
            rules=rules,
            samples=how.samples or protocol.samples,
            seed=how.seed,
            versions=service.versions(),
            concurrency=1 if policy == "human" else how.concurrency,
            skills=how.skills,
        )
        with _progress() as bar:
            task = bar.add_task(f"{player.name} on {chosen.name}", total=None, solved="")

            def show(episode: Trajectory, done: int, planned: int) -> None:
                solved[0] += episode.success
                bar.update(task, completed=done, total=planned, solved=f"{solved[0]} solved")

            solved = [0]
            return run_evaluation(evaluation, player, lambda: service.make_env(rules.max_turns), folder, show)


def _text(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(f"The system prompt {file} cannot be read: {error.strerror}.", type="bad_setting") from error


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[solved]}"),
        TimeRemainingColumn(),
        console=err,
    )


def pairs(given: list[str] | None) -> dict[str, Any]:
    """Reads `KEY=VALUE` pairs; a value that is no JSON is text.

    Raises:
        InputError: A pair without `=`.
    """
    found: dict[str, Any] = {}
    for pair in given or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"Write KEY=VALUE, not '{pair}'.", type="bad_setting")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _table(result: Mapping[str, Any]) -> Table:
    partial = "" if result["complete"] else "  PARTIAL"
    played, planned = result["episodes"], result["planned"]
    table = Table(
        title=f"{result['policy']['name']} on {result['panel']['name']}: {played} of {planned} episodes{partial}"
    )
    for name in ("", "value", "95 % interval", "tasks"):
        table.add_column(name, justify="left" if not name else "right")
    for name, estimate in result["metrics"].items():
        low, high = estimate["low"], estimate["high"]
        interval = "–" if low is None or low == high else f"{low:.3f} to {high:.3f}"
        table.add_row(name, f"{estimate['value']:.3f}", interval, str(estimate["tasks"]))
    return table


def view(
    paths: Annotated[list[str], typer.Argument(help="Run, evaluation or trajectory file, each PATH or LABEL=PATH.")],
    page: Annotated[Path, typer.Option("--out", help="HTML file to write.")] = Path("view.html"),
    title: Annotated[str, typer.Option(help="Of the page.")] = "",
    show_protected: Annotated[
        bool, typer.Option("--show-protected", help="Also messages that a benchmark asks to keep out of plain text.")
    ] = False,
    browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Writes one HTML file with episodes to read, side by side where runs share tasks."""
    report.view(paths, page, title, show_protected)
    out.print(f"Open {page.resolve().as_uri()}", soft_wrap=True)
    if browser:
        typer.launch(str(page))


def compare(
    arms: Annotated[list[str], typer.Argument(help="NAME=FOLDER[,FOLDER…], the first is the reference.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("comparison"),
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Accept partial results.")] = False,
    panel: Annotated[str, typer.Option(help="Name of the panel, for runs that were evaluated on several.")] = "",
) -> None:
    """Compares methods over seeds: table, plots and one page."""
    table = run_comparison(arms, folder, allow_partial, panel)
    shown = Table(
        "arm", "seeds", "success", "score", "± over seeds", "minus reference", "p (tasks)", title=table["panel"]
    )
    differences = {row["b"]: row for row in table["comparisons"] if row["measure"] == "success"}
    for i, row in enumerate(table["arms"]):
        shown.add_row(*_arm_cells(row, differences.get(i)))
    out.print(shown)
    out.print(f"Look at it: {(folder / 'comparison.html').resolve().as_uri()}", soft_wrap=True)


def _arm_cells(row: Mapping[str, Any], difference: Mapping[str, Any] | None) -> list[str]:
    spread = row["seed_deviation"]["success"]
    cells = [row["label"], str(row["seeds"])]
    cells += [_with_interval(row["metrics"][measure]) for measure in ("success", "score")]
    cells.append("–" if spread is None else f"{spread:.3f}")
    return cells + (
        ["", ""]
        if difference is None
        else [_with_interval(difference["difference"], "+"), _p_value(difference["p_value"])]
    )


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _with_interval(estimate: Mapping[str, Any], sign: str = "") -> str:
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    return f"{value:{sign}.3f}" if low is None else f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"
