"""Small adapters with every behaviour a service must survive, for `--adapter tests.service.adapters:…`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from env_servers.adapter import Adapter, AdapterError, Episode, Facts, StepResult, Task

GOAL = 5


class CounterEpisode(Episode):
    """Counts; every executed action leaves a line in the log."""

    def __init__(self, adapter: CounterAdapter, task_id: str, seed: int | None, options: Mapping[str, Any]) -> None:
        self.adapter = adapter
        self.value = 0
        self.said: str | None = None
        self.options = options
        self.replayable = False if options.get("random") else None
        self.first = self._result(f"{task_id} seed {seed} counter 0", 0.0)

    def step(self, action: Any) -> StepResult:
        if not isinstance(action, str):
            raise AdapterError("bad_action", "The action must be a string, e.g. 'add 1'.")
        self._log(action)
        verb, _, rest = action.partition(" ")
        if verb == "add":
            self.value += int(rest)
        elif verb == "refuse":
            raise AdapterError("bad_action", "This action is never accepted; try 'add 1'.")
        else:
            getattr(self, "do_" + verb)(rest)
        done = self.value >= GOAL
        said, self.said = self.said, None
        result = self._result(f"counter {self.value}" + (f", user: {said}" if said else ""), float(done), done)
        result.record = said
        return result

    def repeat(self, action: Any, record: Any) -> StepResult:
        self.said = record
        return self.step(action)

    def do_talk(self, rest: str) -> None:
        """A simulated user answers: another word each time, but the same when the episode is rebuilt."""
        self.said = self.said or os.urandom(8).hex()

    def do_sleep(self, rest: str) -> None:
        time.sleep(float(rest))

    def do_await(self, rest: str) -> None:
        """Lasts until there is such a file."""
        while not Path(rest).exists():
            time.sleep(0.02)

    def do_say(self, rest: str) -> None:
        pass

    def do_print(self, rest: str) -> None:
        print("x" * int(rest))
        os.write(1, b"raw \xff\n")

    def do_raise(self, rest: str) -> None:
        raise RuntimeError(rest)

    def do_exit(self, rest: str) -> None:
        raise SystemExit(3)

    def do_die(self, rest: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_once(self, rest: str) -> None:
        """Dies the first time only."""
        marker = Path(rest)
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def do_killfront(self, rest: str) -> None:
        marker = Path(rest)
        if not marker.exists():
            marker.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)

    def do_child(self, rest: str) -> None:
        """Starts a child that would outlive its parent, as a JVM would."""
        subprocess.Popen(["sleep", rest])

    def do_eat(self, rest: str) -> None:
        self.eaten = b"x" * (int(rest) * 2**20)
        time.sleep(30)

    def do_copies(self, rest: str) -> None:
        """Forks, as AppWorld does: four processes more with the same pages."""
        self.eaten = b"x" * (int(rest) * 2**20)
        for _ in range(4):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)

    def do_nan(self, rest: str) -> None:
        self.value += float("nan")  # type: ignore[assignment]

    def do_time(self, rest: str) -> None:
        """Nothing here is deterministic."""
        self.value += time.time_ns() % 2**20 / 2**40  # type: ignore[assignment]

    def _result(self, text: str, reward: float, done: bool = False) -> StepResult:
        score = min(self.value / GOAL, 1.0)
        info: dict[str, Any] = {"raw_score": self.value, "score": score, "success": done, "action_valid": True}
        if self.options.get("dirty"):
            info["dirty"] = [float("nan"), float("inf"), "lone \ud800", {1: (2, 3)}]
            text += " \udfff"
        return StepResult(text, reward, done, False, info)

    def _log(self, action: str) -> None:
        log = self.adapter.settings.get("log")
        if log:
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {id(self)} {action}\n")


class CounterAdapter(Adapter):
    facts = Facts(
        "counter",
        sessions_per_worker=4,
        concurrency="interleaved",
        max_steps=20,
        step_timeout=2.0,
        action_format="plain",
        reward_scale="1 at the goal",
    )

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        unknown = set(self.settings) - {"log", "version"}
        if unknown:
            raise AdapterError("bad_option", f"There is no setting {unknown.pop()!r}; there are: log, version.")

    def metadata(self) -> dict[str, Any]:
        version = str(self.settings.get("version", "1"))
        return {"adapter_version": version, "versions": {}, "data_digest": "0" * 64, "engine_flags": {}}

    def splits(self) -> Sequence[str]:
        return ["train", "test"]

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"count/{split}-{i}", split, "count") for i in range(10)]

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> Episode:
        unknown = set(options) - {"random", "dirty", "fail"}
        if unknown:
            raise AdapterError("bad_option", f"There is no option {unknown.pop()!r}; there are: dirty, fail, random.")
        if options.get("fail") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if options.get("fail") == "raise":
            raise RuntimeError("the engine is out of order")
        return CounterEpisode(self, task_id, seed, options)

    def gold(self, task_id: str, options: Mapping[str, Any]) -> list[Any] | None:
        if options.get("fail") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while "await" in options and not Path(options["await"]).exists():
            time.sleep(0.02)
        if options.get("then") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return ["add 1"] * GOAL


class ThreadedAdapter(CounterAdapter):
    facts = Facts("threaded", sessions_per_worker=256, concurrency="threads", max_steps=1000, step_timeout=4.0)


class SingleAdapter(CounterAdapter):
    facts = Facts("single", sessions_per_worker=1, concurrency="single", max_steps=20, step_timeout=2.0)
