"""The `cope` command.

Its own commands are here; evaluation and data add some, and other packages add theirs through entry points of the
groups `cope.commands` and `cope.data.import`, so that no package imports another against the dependency direction.
"""

from __future__ import annotations

import errno
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer

from cope_gym import __version__
from cope_gym.cli import browse, check, doctor, play
from cope_gym.cli.common import complain, out
from cope_gym.data import cli as data
from cope_gym.errors import CopeError, InputError
from cope_gym.evaluate import cli as evaluation
from cope_gym.evaluate import panel_cli
from cope_gym.skills import cli as skills

# What a path or a disk does not allow. The user can mend it; any other error of the system keeps its traceback.
_PATHS = {
    number: fix
    for numbers, fix in (
        ((errno.ENOSPC, errno.EDQUOT), "make room and give the same command again"),
        ((errno.EACCES, errno.EPERM, errno.EROFS), "choose a place that you may write to, or change its permissions"),
        ((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG), "choose another path"),
    )
    for number in numbers
}
_EXTRAS = {"env_servers": "server", "cope_train": "train"}


def build() -> typer.Typer:
    """Returns the command line with everybody's commands."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_options)
    for command in (browse.envs, browse.tasks, play.play, check.check, doctor.doctor):
        app.command()(command)
    app.command("eval")(evaluation.evaluate)
    app.command()(evaluation.view)
    app.command()(evaluation.compare)
    app.add_typer(panel_cli.panel, name="panel")
    skills.skills.command("push")(data.push_skills)
    skills.skills.command("pull")(data.pull_skills)
    app.add_typer(data.data, name="data")
    app.add_typer(skills.skills, name="skills")
    app.add_typer(skills.retrieval, name="retrieval")
    for entry in sorted(entry_points(group="cope.commands"), key=lambda entry: entry.name):
        command = _mount(app, entry, f"cope {entry.name}")
        if isinstance(command, typer.Typer):  # other packages add to it, e.g. to `cope bench`
            for part in entry_points(group=f"cope.{entry.name}"):
                _mount(command, part, f"cope {entry.name} {part.name}")
    for entry in entry_points(group="cope.data.import"):
        _mount(data.imports, entry, f"cope data import {entry.name}")
    return app


def main() -> None:
    """Runs `cope`. A fault that has a name is one sentence and exit code 2, never a traceback."""
    try:
        build()()
    except CopeError as error:
        complain(str(error))
        sys.exit(2)
    except OSError as error:
        if error.errno not in _PATHS or (error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT)):
            raise
        where = f"{error.filename} cannot be read or written: " if error.filename is not None else ""
        complain(f"{where}{error.strerror}; {_PATHS[error.errno]}.")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"cope-gym {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Train and evaluate language agents in long interactive tasks."""


def _mount(app: typer.Typer, entry: EntryPoint, words: str) -> Any:
    try:
        command = entry.load()
    except ModuleNotFoundError as error:
        app.command(entry.name, help="Not installed here.")(_missing(entry, words, error))
        return None
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry.name)
    else:
        app.command(entry.name, context_settings=getattr(command, "context_settings", None))(command)
    return command


def _missing(entry: EntryPoint, words: str, error: ModuleNotFoundError) -> Any:
    extra = _EXTRAS.get(entry.module.split(".")[0], "")

    def refuse() -> None:
        fix = f"run `pip install 'cope-gym[{extra}]'`" if extra else f"reinstall {entry.module}"
        raise InputError(f"`{words}` needs {error.name}: {fix}.", type="no_extra")

    return refuse
