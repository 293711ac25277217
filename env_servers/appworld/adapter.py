"""AppWorld as an adapter: asks the zygote for a contained copy a session, and for a grader when a session has ended.

This process neither imports `appworld` nor runs an agent's code; its clock is real.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from env_servers.adapter import Adapter, AdapterError, EngineGoneError, Episode, Facts, StepResult, Task
from env_servers.appworld import data, tasks
from env_servers.worker import framing

_ZYGOTE = Path(__file__).with_name("zygote.py")
_SETTINGS = {"root": "", "timeout_seconds": 100, "memory_mb": 4096, "output_limit": 65536}
# Until AppWorld's own time-out has had its chance; agents' code can dodge that one, but not a kill.
_GRACE = 15
_START_TIMEOUT = 100
_GRADE_TIMEOUT = 60
_ZYGOTE_TIMEOUT = 170
# Users that exist on no machine, one for each session of a worker.
_UIDS = range(61_184, 61_248)


class AppWorldAdapter(Adapter):
    """AppWorld 0.1.3.post1.

    Settings: `root` (a folder with AppWorld's `data`; by default the official data in the cache folder if it is
    there, else the self-made world), `timeout_seconds` (AppWorld's limit for one step), `memory_mb` (a session's
    address space) and `output_limit` (characters of an observation).

    An action is Python code. There are no options.
    """

    facts: ClassVar[Facts] = Facts(
        name="appworld",
        # 95 MB each beside the 240 MB that they share: from 2 GB on the service lets a worker end after its sessions.
        sessions_per_worker=8,
        concurrency="threads",
        python_requires=">=3.11,<3.14",
        deterministic=True,
        max_steps=50,
        step_timeout=180.0,
        invalid_patterns=("execution failed. traceback", "no code available to execute"),
        action_format="code",
        reward_scale="1 at the end if every test of the task passes, else 0",
    )

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        if unknown := sorted(set(self.settings) - set(_SETTINGS)):
            raise AdapterError(
                "bad_option", f"AppWorld has no setting {unknown[0]!r}; settings are: {', '.join(_SETTINGS)}."
            )
        self._limits: dict[str, int] = {}
        for name in ("timeout_seconds", "memory_mb", "output_limit"):
            value = self.settings.get(name, _SETTINGS[name])
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise AdapterError("bad_option", f"{name} is a whole number of at least 1, not {value!r}.")
            self._limits[name] = value
        self.root, self.self_made = data.find(str(self.settings.get("root", "")))
        self._catalogue = tasks.Catalogue(self.root)
        self._scenarios = Counter(map(_scenario, self._catalogue.ids))
        self._folder = _own_folder()
        self._root_user = os.geteuid() == 0
        self._uids = list(_UIDS) if self._root_user else []
        self._lock = threading.Lock()
        (self.root / "experiments" / "outputs").mkdir(parents=True, exist_ok=True)
        # Started here, as it dies with the thread that starts it. It loads when it is told to: six seconds of
        # processor time and a quarter of a GB, which a worker that only answers questions never needs.
        self._zygote, self._control = _start_zygote(self.root)
        self._told_to_load = self._loaded = False

    def metadata(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "adapter_version": "1",
            "versions": {"appworld": version("appworld")},
            "data_digest": data.digest(self.root),
            "engine_flags": {
                **self._limits,
                "data": "self-made" if self.self_made else "official",
                "containment": "namespaces, ordinary user" if self._root_user else "namespaces",
                "uncontained": "a session may edit its own databases past the APIs",
            },
        }

    def splits(self) -> Sequence[str]:
        """See the base class."""
        return self._catalogue.splits()

    def tasks(self, split: str) -> list[Task]:
        """See the base class."""
        return self._catalogue.tasks(split)

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> Episode:
        """See the base class; a task fixes everything, so the seed is not used."""
        self._catalogue.check(task_id)
        if options:
            raise AdapterError("bad_option", f"AppWorld has no options; leave {sorted(options)[0]!r} out.")
        return AppWorldEpisode(self, task_id, self._limits)

    def gold(self, task_id: str, options: Mapping[str, Any]) -> list[Any] | None:
        """See the base class; official solutions are functions of AppWorld's own, no code that a session could run."""
        self._catalogue.check(task_id)
        solution = self.root / "data" / "tasks" / task_id / "ground_truth" / "solution.txt"
        return [solution.read_text()] if self.self_made else None

    def warm(self) -> None:
        """See the base class; does not wait until the zygote has loaded."""
        with self._lock:
            self._load()

    def close(self) -> None:
        """See the base class."""
        self._control.close()
        self._zygote.kill()
        self._zygote.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def scenario_tasks(self, task_id: str) -> int:
        """Returns how many variants the scenario of a task has in the data here."""
        return self._scenarios[_scenario(task_id)]

    def take_place(self) -> tuple[Path, int | None]:
        """Returns an empty folder and a user for a session."""
        with self._lock:
            if self._root_user and not self._uids:
                raise AdapterError("capacity", "All places of this AppWorld worker are taken.", retryable=True)
            uid = self._uids.pop(0) if self._root_user else None
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        if uid is not None:
            os.chown(folder, uid, uid)
        return folder, uid

    def free_place(self, folder: Path, uid: int | None) -> None:
        """Takes them back."""
        shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            if uid is not None:
                self._uids.append(uid)

    def copy(self, request: dict[str, Any]) -> tuple[int, socket.socket]:
        """Has the zygote copy itself; returns the copy's process id and the connection to it."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            self._load()
            if not self._loaded:
                self._hear(_ZYGOTE_TIMEOUT)
                self._loaded = True
            self._tell(request, theirs.fileno())
            return self._hear(_START_TIMEOUT)["pid"], ours

    def kill(self, pid: int) -> None:
        """Kills a copy with all that it has started."""
        with self._lock:
            self._tell({"op": "kill", "pid": pid})
            self._hear(_START_TIMEOUT)

    def _load(self) -> None:
        if not self._told_to_load:
            self._tell({"op": "load"})
            self._told_to_load = True

    def _tell(self, request: dict[str, Any], *descriptors: int) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
        except OSError as error:
            raise EngineGoneError(f"AppWorld's zygote has died ({error}).") from error

    def check_alive(self) -> None:
        """Raises `EngineGoneError` where the zygote has died: its copies die with it, whatever their code does."""
        if self._zygote.poll() is not None:
            raise EngineGoneError("AppWorld's zygote has died; its last words are in the worker's log.")

    def _hear(self, timeout: float) -> dict[str, Any]:
        self._control.settimeout(timeout)
        try:
            message = self._control.recv(1 << 16)
        except TimeoutError:
            message = b""
        if not message:
            raise EngineGoneError("AppWorld's zygote has died or hangs; its last words are in the worker's log.")
        return json.loads(message)


class AppWorldEpisode(Episode):
    """One task being worked on by an agent's code in a copy of the zygote."""

    def __init__(self, adapter: AppWorldAdapter, task_id: str, limits: dict[str, int]) -> None:
        self._adapter = adapter
        self._task_id = task_id
        self._limits = limits
        self._ended = False
        self._pid: int | None = None
        self._folder, self._uid = adapter.take_place()
        try:
            self._pid, self._connection = adapter.copy(self._request("session"))
            told = self._receive(_START_TIMEOUT)
            if told is None or "error" in told:
                raise _refusal("the session died while it started" if told is None else told["error"])
        except BaseException:
            self.close()
            raise
        self.first = StepResult(_introduction(told), 0.0, False, False, self._info(None, True))

    def step(self, action: Any) -> StepResult:
        """See the base class."""
        if not isinstance(action, str):
            raise AdapterError("bad_action", f"An action is Python code as text, not {type(action).__name__}.")
        if self._ended:
            raise AdapterError("episode_over", "The task has been completed; start a new episode.")
        told = self._ask(action)
        if told is not None and "error" in told:
            raise RuntimeError(f"AppWorld itself failed in a step: {told['error']}")
        if told is None or "output" not in told:
            self._adapter.check_alive()
            # The code has ended or hung its own process. That is its doing, and what it did until then counts nothing.
            self._ended = True
            text = "Execution failed. Traceback:\nThe code ended or hung the session, which was killed."
            return StepResult(text, 0.0, True, False, self._info(None, False))
        text = str(told["output"])[: self._limits["output_limit"] + 200]
        valid = not any(pattern in text.lower() for pattern in AppWorldAdapter.facts.invalid_patterns)
        if told.get("done") is not True:
            return StepResult(text, 0.0, False, False, self._info(None, valid))
        self._ended = True
        grade = self._grade()
        return StepResult(text, float(grade["success"]), True, False, self._info(grade, valid))

    def close(self) -> None:
        """See the base class."""
        self._end_process()
        self._adapter.free_place(self._folder, self._uid)

    def _grade(self) -> dict[str, Any]:
        """Compares the end state on disk with the ground truth, in a process that the agent never ran in."""
        self._end_process()
        pid, connection = self._adapter.copy(self._request("grade"))
        with connection:
            connection.settimeout(_GRADE_TIMEOUT)
            try:
                grade = framing.read(connection)
            except (OSError, framing.FrameError):
                grade = None
            self._adapter.kill(pid)
        if grade is None or "success" not in grade:
            raise RuntimeError(f"AppWorld's evaluation failed: {(grade or {}).get('error', 'no reply')}")
        return grade

    def _request(self, op: str) -> dict[str, Any]:
        place = {"folder": str(self._folder), "uid": self._uid}
        return {"op": op, "task_id": self._task_id, **place, **self._limits}

    def _ask(self, code: str) -> dict[str, Any] | None:
        try:
            self._connection.sendall(framing.encode({"code": code}))
        except OSError:  # it died between two steps, which is no doing of this code
            self._adapter.check_alive()
            raise
        return self._receive(self._limits["timeout_seconds"] + _GRACE)

    def _receive(self, timeout: float) -> dict[str, Any] | None:
        self._connection.settimeout(timeout)
        try:
            return framing.read(self._connection)
        except (OSError, framing.FrameError, ValueError):
            return None

    def _end_process(self) -> None:
        if self._pid is not None:
            pid, self._pid = self._pid, None
            self._connection.close()
            self._adapter.kill(pid)

    def _info(self, grade: dict[str, Any] | None, valid: bool) -> dict[str, Any]:
        success = bool(grade and grade["success"])
        info: dict[str, Any] = {
            "raw_score": float(success),
            "score": float(success),
            "success": success,
            "action_valid": valid,
            "scenario": _scenario(self._task_id),
            "scenario_tasks": self._adapter.scenario_tasks(self._task_id),
        }
        if grade is not None:
            # Counts only: what failed would give the assertions away.
            info["tests_passed"], info["tests"] = grade["passed"], grade["total"]
        return info


def _scenario(task_id: str) -> str:
    return task_id.split("_")[0]


def _own_folder() -> Path:
    """Returns a folder for sessions, and removes those of workers that were killed."""
    for left in Path(tempfile.gettempdir()).glob("cope-appworld-*-*"):
        if not Path(f"/proc/{left.name.split('-')[2]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"cope-appworld-{os.getpid()}-"))
    folder.chmod(0o711)
    return folder


def _introduction(told: dict[str, Any]) -> str:
    person = told["supervisor"]
    apps = "\n".join(f"- {name}: {what}" for name, what in told["apps"].items())
    return (
        f"Task: {told['instruction']}\n\nYour supervisor is {person['first_name']} {person['last_name']} "
        f"(email {person['email']}, phone number {person['phone_number']}). "
        f"It is {told['datetime'].replace('T', ' ')}.\n\nApps:\n{apps}"
    )


def _refusal(reason: str) -> Exception:
    if "SandboxError" in reason:
        return AdapterError(
            "worker_failed",
            f"AppWorld's sessions cannot be contained here ({reason}); run the server as root or allow user "
            "namespaces: agents' code is never run without.",
        )
    return RuntimeError(f"AppWorld could not start the task: {reason}")


def _start_zygote(root: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", str(_ZYGOTE), "--fd", str(theirs.fileno()), "--root", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            # A configuration file in the working directory would be read.
            cwd=root,
        )
    return process, ours


ADAPTER = AppWorldAdapter
