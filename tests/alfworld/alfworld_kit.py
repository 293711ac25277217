"""Drives the adapter as the service does: a worker process in the benchmark's own environment, spoken to in frames."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import env_servers
from env_servers.worker import framing

MAIN = Path(env_servers.__file__).parent / "worker" / "main.py"


class AdapterFault(Exception):
    """The adapter raised; `type` is that of an `AdapterError`, or `fault` for anything else."""

    def __init__(self, type: str, detail: str) -> None:
        super().__init__(f"{type}: {detail}")
        self.type = type
        self.detail = detail


class AdapterWorker:
    """One worker process with blocking calls."""

    def __init__(self, python: Path, adapter: str = "adapter", hash_seed: str | None = None, **settings: Any) -> None:
        self._ids = itertools.count()
        self._socket, theirs = socket.socketpair()
        environ = {**os.environ, **({} if hash_seed is None else {"PYTHONHASHSEED": hash_seed})}
        flags = ["-I"] if hash_seed is None else []  # isolated mode ignores the variable
        with theirs:
            self.process = subprocess.Popen(
                [python, *flags, MAIN, "--adapter", f"env_servers.alfworld.{adapter}:ADAPTER"]
                + ["--fd", str(theirs.fileno()), "--parent", str(os.getpid()), "--settings", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environ,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def call(self, op: str, **arguments: Any) -> Any:
        self._socket.sendall(framing.encode({"id": next(self._ids), "op": op, "args": arguments}))
        reply = framing.read(self._socket)
        assert reply is not None, "the worker is gone"
        if "error" in reply:
            raise AdapterFault(reply["error"]["type"], reply["error"]["detail"])
        if "fault" in reply:
            raise AdapterFault("fault", reply["fault"])
        return reply["ok"]

    def start(self, session: str, task_id: Any, options: Any = None) -> dict[str, Any]:
        return self.call("start", session=session, task_id=task_id, seed=None, options=options or {})["first"]

    def step(self, session: str, action: Any) -> dict[str, Any]:
        return self.call("step", session=session, action=action)

    def end(self, session: str) -> None:
        self.call("close", session=session)

    def gold(self, task_id: str, options: Any = None) -> list[str]:
        return self.call("gold", task_id=task_id, options=options or {})

    def play(self, task_id: str, actions: list[str], options: Any = None) -> list[Any]:
        """Returns what an episode shows: text, reward, end and commands of every call."""
        first = self.start("played", task_id, options)
        shown = [seen(first)]
        for action in actions:
            shown.append(seen(self.step("played", action)))
            if shown[-1][2]:
                break
        self.end("played")
        return shown

    def close(self) -> None:
        try:
            self.call("shutdown")
        finally:
            self.process.kill()
            self.process.wait()
            self._socket.close()

    def __enter__(self) -> AdapterWorker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.close()


def seen(reply: dict[str, Any]) -> list[Any]:
    """Returns what an agent sees of a reply."""
    return [reply["text"], reply["reward"], reply["terminated"], reply["info"].get("admissible_actions")]


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from main import bind_package
bind_package()
from env_servers.alfworld import generator
made = [generator.generate(sys.argv[2], number) for number in range(int(sys.argv[3]))]
print(json.dumps([[one.folder, one.trial, one.sentence, one.digest(), one.to_file()] for one in made]))
"""


def generate(python: Path, seed: str, count: int, hash_seed: str) -> list[Any]:
    """Returns folder, trial, sentence, digest and file of the first generated games."""
    command = [python, "-c", SCRIPT, str(MAIN.parent), seed, str(count)]
    done = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
