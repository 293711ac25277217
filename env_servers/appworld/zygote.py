"""The process that every session is a copy of: AppWorld loaded, no world open, one thread, a real clock.

`<AppWorld's python> -I zygote.py --fd N --root ROOT`. The adapter asks for copies of it: a session runs an agent's
code and has no rights; a grader compares a session's end state with the ground truth and is gone.
"""

# appworld is untyped, and in the benchmark's environment only.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import signal
import socket
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "worker"))
    from main import bind_package  # pyright: ignore

    bind_package()

from env_servers.appworld import sandbox
from env_servers.worker import framing

_HERE = Path(__file__).resolve().parent
_MAX_REQUEST = 1 << 16
# The name of AppWorld's output folder below the session's own.
EXPERIMENT = "session"


class Zygote:
    """Serves the control socket until it closes."""

    def __init__(self, control: socket.socket, root: Path) -> None:
        self._control = control
        self._root = root
        self._children: set[int] = set()

    def run(self) -> None:
        """Loads everything when it is told to, says so, and then copies itself on request."""
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._control, _MAX_REQUEST, 1)
            if not message:
                return
            request = json.loads(message)
            self._reap()
            if request["op"] == "load":
                preload()
                self._say({"ready": True})
            elif request["op"] == "kill":
                self._kill(request["pid"])
                self._say({"killed": request["pid"]})
            else:
                self._say({"pid": self._fork(request, descriptors[0])})
                os.close(descriptors[0])

    def _fork(self, request: dict[str, Any], descriptor: int) -> int:
        pid = os.fork()
        if pid:
            self._children.add(pid)
            return pid
        self._control.close()
        _contained(request, socket.socket(fileno=descriptor), self._root)
        raise AssertionError("a copy never returns")

    def _kill(self, pid: int) -> None:
        # Not reaped yet, so the number cannot have become somebody else's.
        if pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._children.discard(pid)

    def _reap(self) -> None:
        for pid in list(self._children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._children.discard(pid)

    def _say(self, what: dict[str, Any]) -> None:
        self._control.send(json.dumps(what).encode())


def preload() -> None:
    """Imports what a child would import late, when it may no longer be able to."""
    # Nothing of this is garbage: looking for some took a third of the time. Left out of every later look as well, its
    # pages stay those that all copies share.
    gc.disable()
    from appworld.api_docs import prepare_api_docs
    from appworld.apps import get_all_apps
    from appworld.apps.api_lib import set_local_date_and_time, unset_local_date_and_time
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.environment import SafetyGuard

    SafetyGuard()
    late = ("appworld.evaluator", "pytest", "encodings.idna", "encodings.unicode_escape", "encodings.latin_1")
    for name in (*late, *(f"appworld.apps.{app}.apis" for app in get_all_apps())):
        importlib.import_module(name)
    ApiDocCollection.load(load_apps=tuple(get_all_apps(skip_admin=True)), include_response_schemas=True)
    # What the first call of an app's API would work out, a tenth to a quarter of a second for each app.
    for app in get_all_apps():
        prepare_api_docs(app, include_private_apis=True)
    # Who freezes the clock first has to look through all modules.
    unset_local_date_and_time(set_local_date_and_time(datetime(2023, 5, 18)))
    gc.freeze()
    gc.enable()


def _contained(request: dict[str, Any], connection: socket.socket, root: Path) -> None:
    """Does what was asked as process 1 of new namespaces and never returns; this process waits for its end."""
    try:
        sandbox.die_with_parent()
        sandbox.enter_namespaces()
        inner = os.fork()
        if inner:
            connection.close()
            os.waitpid(inner, 0)
            os._exit(0)
        sandbox.die_with_parent()
        _arrange(request, connection, root)
        (_session if request["op"] == "session" else _grade)(request, connection)
    except BaseException as error:
        _send(connection, {"error": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _arrange(request: dict[str, Any], connection: socket.socket, root: Path) -> None:
    """Lays out what the process may see, then gives up its rights."""
    grading = request["op"] == "grade"
    task = root / "data" / "tasks" / request["task_id"]
    sandbox.bind(Path(request["folder"]), root / "experiments" / "outputs")
    if not grading:
        shown = (task / "specs.json", *sorted((task / "dbs").iterdir()))
        sandbox.hide(root / "data" / "tasks", keep=shown)
        # The self-made world's solutions are source code here.
        sandbox.hide(_HERE)
    needed = tuple({Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), root.resolve()})
    for private in (Path.home().resolve(), Path("/tmp")):
        sandbox.hide(private, keep=tuple(path for path in needed if private in path.parents), mode="1777")
    sandbox.own_proc()
    os.chdir(root)
    sandbox.close_all_but({connection.fileno()})
    sandbox.clear_environment(
        ("APPWORLD_ROOT", "APPWORLD_CACHE", "LANG"), HOME="/tmp", IPYTHONDIR="/tmp/ipython", PATH="/usr/bin:/bin"
    )
    sandbox.give_up_rights(request["uid"], request["memory_mb"])


def _session(request: dict[str, Any], connection: socket.socket) -> None:
    from appworld.environment import AppWorld

    world = AppWorld(
        task_id=request["task_id"],
        experiment_name=EXPERIMENT,
        load_ground_truth=False,
        timeout_seconds=request["timeout_seconds"],
        max_interactions=sys.maxsize,
    )
    world.environment_io = _CleanLog(world.environment_io)
    supervisor = world.task.supervisor
    _send(
        connection,
        {
            "instruction": world.task.instruction,
            "supervisor": {key: str(supervisor[key]) for key in ("first_name", "last_name", "email", "phone_number")},
            "datetime": world.task.datetime.isoformat(),
            "apps": dict(world.task.app_descriptions),
        },
    )
    while (message := framing.read(connection)) is not None:
        try:
            output = world.execute(_encodable(message["code"]))
        except Exception:  # not the agent's code, whose exceptions are texts, but the engine
            raise
        except BaseException as error:  # KeyboardInterrupt, SystemExit and the like, which the agent's code can raise
            world.safety_guard.disable()
            output = f"Execution failed. Traceback:\n{type(error).__name__}: {error}"
        _send(connection, {"output": shorten(output, request["output_limit"]), "done": bool(world.task_completed())})


class _CleanLog(list[dict[str, str]]):
    """AppWorld's log of a session: one lone surrogate in it would break its writing, and with it every later step."""

    def append(self, entry: dict[str, str]) -> None:
        """Appends what can be written."""
        super().append({key: _encodable(text) for key, text in entry.items()})


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _grade(request: dict[str, Any], connection: socket.socket) -> None:
    from appworld.evaluator import evaluate_task

    tracker = evaluate_task(request["task_id"], experiment_name=EXPERIMENT, save_report=False)
    failed = [one["label"] for one in tracker.failures]
    _send(
        connection,
        {"success": bool(tracker.success), "passed": tracker.pass_count, "total": tracker.num_tests, "failed": failed},
    )


def shorten(text: str, limit: int) -> str:
    """Returns the text, or its head and tail with a mark of how much is missing between them."""
    text = _encodable(text)
    if len(text) <= limit:
        return text
    tail = limit // 4
    head = limit - tail
    return f"{text[:head]}\n[… {len(text) - limit:,} characters left out …]\n{text[-tail:]}"


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(framing.encode(message))


def main() -> None:
    """Serves an inherited socket."""
    parser = argparse.ArgumentParser(description="AppWorld, loaded and ready to be copied.")
    parser.add_argument("--fd", required=True, type=int)
    parser.add_argument("--root", required=True, type=Path)
    arguments = parser.parse_args()
    sandbox.die_with_parent()
    os.environ["APPWORLD_ROOT"] = str(arguments.root)
    os.dup2(2, 1)
    Zygote(socket.socket(fileno=arguments.fd), arguments.root).run()


if __name__ == "__main__":
    main()
