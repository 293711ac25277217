"""`cope play`: a person plays an episode in the terminal."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.columns import Columns
from rich.markup import escape
from rich.panel import Panel

from cope_gym.cli.common import BaseUrl, Env, Options, Split, out, waiting
from cope_gym.env import CopeEnv
from cope_gym.errors import InputError
from cope_gym.evaluate.cli import pairs
from cope_gym.server import connect
from cope_gym.session import Session
from cope_gym.tasklist import short_name

HELP = """[bold]:actions[/] WORD   admissible actions, those that hold WORD
[bold]:look[/]           the last observation again
[bold]:score[/]          score and steps
[bold]:hint[/]           the next action of a solution that starts from the beginning
[bold]:restart[/]        the same task from the beginning
[bold]:quit[/]           leave (also Ctrl-D)
Anything else is an action."""


def play(
    env: Env,
    task: Annotated[str | None, typer.Option(help="Task id; by default the seed picks one.")] = None,
    split: Split = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Picks the task.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Step limit.")] = None,
    option: Options = None,
    base_url: BaseUrl = None,
) -> None:
    """Play an episode yourself; `:help` says how."""
    name = short_name(env)
    options = pairs(option)
    game = CopeEnv(name, task_id=task, split=split, max_steps=max_steps, client=connect(name, base_url))
    with contextlib.suppress(ImportError):  # arrow keys and history, where Python has them
        importlib.import_module("readline")
    try:
        Game(game, seed, options).run()
    finally:
        game.close()


class Game:
    """A person at the keyboard.

    Args:
        env: What is played.
        seed: Seed of the episode.
        options: Options of the benchmark.
    """

    def __init__(self, env: CopeEnv, seed: int | None, options: dict[str, Any]) -> None:
        self._env = env
        self._seed = seed
        self._options = options
        self._gold: list[Any] | None = None

    def run(self) -> None:
        """Plays until the episode or the person ends it."""
        self._begin()
        while not self._session.reply.done:
            try:
                line = out.input("[bold cyan]> [/]").strip()
            except (EOFError, KeyboardInterrupt):
                out.print()
                return
            if line == ":quit":
                return
            if line.startswith(":"):
                self._meta(line)
            elif line:
                self._act(line)
        self._finish()

    @property
    def _session(self) -> Session:
        return self._env.running()

    def _begin(self) -> None:
        with waiting(f"starting {self._env.name}"):
            self._reset()
        session = self._session
        title = f"{session.env} {session.task_id} ({session.split}), {session.max_steps} steps, :help for help"
        out.print(Panel(escape(session.reply.observation), title=escape(title), title_align="left"))

    def _reset(self) -> None:
        try:  # the list of actions costs time in some benchmarks, so it is an option there
            self._env.reset(seed=self._seed, options={"admissible_actions": True, **self._options})
        except InputError as error:
            if error.type != "bad_option" or "admissible_actions" not in str(error):
                raise
            self._env.reset(seed=self._seed, options=self._options)

    def _act(self, action: str) -> None:
        try:
            observation, reward, *_, info = self._env.step(action)
        except InputError as error:
            out.print(f"[yellow]{escape(str(error))}[/]")
            return
        out.print(escape(observation))
        if reward or not info["action_valid"]:
            note = f"reward {reward:+.2f}, score {info['score']:.2f}" if reward else "that was not executed"
            out.print(f"[dim]{note}, step {info['steps']} of {info['max_steps']}[/]")

    def _meta(self, line: str) -> None:
        command, _, rest = line[1:].partition(" ")
        reply = self._session.reply
        if command == "actions":
            self._actions(reply.info.get("admissible_actions"), rest.strip().lower())
        elif command == "look":
            out.print(escape(reply.observation))
        elif command == "score":
            out.print(f"score {reply.info['score']:.2f}, step {reply.step_index} of {self._session.max_steps}")
        elif command == "hint":
            self._hint()
        elif command == "restart":
            self._options = {**self._options, "task_id": self._session.task_id}
            self._seed = self._session.seed
            self._begin()
        else:
            out.print(HELP)

    def _actions(self, actions: Sequence[str] | None, word: str) -> None:
        if actions is None:
            out.print("[dim]This benchmark does not list its admissible actions.[/]")
            return
        fitting = sorted(action for action in actions if word in action.lower())
        out.print(Columns([escape(action) for action in fitting[:300]], column_first=True, equal=True))
        out.print(f"[dim]{len(fitting)} of {len(actions)}; `:actions WORD` narrows them[/]")

    def _hint(self) -> None:
        session = self._session
        if self._gold is None:
            options = {name: value for name, value in session.options.items() if name != "admissible_actions"}
            self._gold = self._env.client.gold(session.env, session.task_id, options) or []
        step = session.reply.step_index
        known = self._gold[step] if step < len(self._gold) else "no hint from here: try :restart"
        out.print(f"[dim]{escape(str(known))}[/]")

    def _finish(self) -> None:
        reply = self._session.reply
        verdict = "[bold green]Solved[/]" if reply.info["success"] else "[bold red]Not solved[/]"
        why = "" if reply.terminated else " (step limit)"
        out.print(f"{verdict}{why}: score {reply.info['score']:.2f} in {reply.step_index} steps.")
