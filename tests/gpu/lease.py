"""An experiment in one lease of a GPU machine: chooses start and learning rate, then runs arms seed by seed.

Everything is done by `tests/gpu/experiment.sh`; this only says what runs when, several at a time, and stops in time:

1. clones for one and for two epochs;
2. stock GRPO from each at three learning rates (`dev`), beside the clones' own evaluation on the same panel;
3. the best of the six is written to `choice.json`, and every arm of every seed starts from it, as long as another
   one can still end before the deadline;
4. whatever `--tail` says, alone on the machine, in the time that is left.

What has come out so far is packed into `--out` every half a minute: metrics, evaluations, the end of every log.

    setsid python tests/gpu/lease.py --env sciworld --seconds 1400 --out /tmp/results [--seeds 31 32 33 34 35]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cope_train.run_folder import read_metrics

ARMS = ("grpo", "af", "af_te", "placebo")
STARTS, RATES = ("1", "2"), ("3e-4", "1e-3", "2e-3")
LIGHT = {".json", ".jsonl", ".txt", ".log", ".md"}  # what comes back; weights stay
PACK_EVERY = 30.0


@dataclass
class Job:
    """A command of its own, in a process group of its own."""

    name: str
    command: str
    start: str = ""
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    seconds: float = 0.0

    def launch(self, logs: Path) -> None:
        environment = os.environ | ({"START": self.start} if self.start else {})
        with open(logs / f"{self.name}.log", "wb") as log:
            self.process = subprocess.Popen(
                shlex.split(self.command), stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.began = time.monotonic()

    def over(self) -> bool:
        assert self.process is not None
        if self.process.poll() is None:
            return False
        self.seconds = self.seconds or time.monotonic() - self.began
        return True


@dataclass
class Lease:
    """One machine, its deadline and what has been done on it."""

    env: str
    deadline: float
    out: Path
    log: list[str] = field(default_factory=list[str])
    packed: float = 0.0

    @property
    def runs(self) -> Path:
        return Path("runs") / self.env

    def say(self, text: str) -> None:
        self.log.append(f"{self.deadline - time.monotonic():6.0f} s left  {text}")
        (self.out / "lease.log").write_text("\n".join(self.log) + "\n")

    def experiment(self, name: str, part: str, start: str = "", prefix: str = "") -> Job:
        return Job(name, f"{prefix}bash tests/gpu/experiment.sh {self.env} {part}", start)

    def play(self, jobs: Sequence[Job], slots: int, guess: float = 0.0) -> None:
        """Runs jobs in order; one begins only if it can end in time, by how long the longest took."""
        waiting, running = list(jobs), list[Job]()
        longest = guess
        while waiting or running:
            for job in [job for job in running if job.over()]:
                running.remove(job)
                if job.process and job.process.returncode == 0:
                    longest = max(longest if longest != guess else 0.0, job.seconds)
                self.say(f"{job.name}: {job.seconds:.0f} s, exit {job.process.returncode if job.process else None}")
            while waiting and len(running) < slots:
                if time.monotonic() + longest > self.deadline:
                    self.say(f"no time for {', '.join(job.name for job in waiting)}")
                    waiting.clear()
                    break
                running.append(waiting.pop(0))
                running[-1].launch(self.out)
            self.pack()
            if time.monotonic() > self.deadline:
                self.say(f"out of time: {', '.join(job.name for job in running)}")
                for job in running:
                    os.killpg(job.process.pid, 15) if job.process else None
                return
            time.sleep(0.5)

    def pack(self, now: bool = False) -> None:
        if not now and time.monotonic() - self.packed < PACK_EVERY:
            return
        self.packed = time.monotonic()
        files = [p for p in self.runs.rglob("*") if p.suffix in LIGHT and p.is_file() and not _heavy(p)]
        with tarfile.open(self.out / "part.tar.xz", "w:xz", preset=1) as archive:
            for path in files:
                archive.add(path)
        os.replace(self.out / "part.tar.xz", self.out / "results.tar.xz")


def _heavy(path: Path) -> bool:
    """What can be made again, or belongs to weights that stay."""
    return any(part.startswith(("checkpoint-", "clone-", "rollouts")) or part == "experts" for part in path.parts)


def choose(runs: Path) -> dict[str, object]:
    """Start and learning rate with the highest success on the development panel; the smaller rate if equal."""
    found: list[tuple[float, float, str, str]] = []
    for start in STARTS:
        for rate in RATES:
            metrics = runs / f"dev-{start}-{rate}" / "metrics.jsonl"
            rows = read_metrics(metrics) if metrics.is_file() else []
            found += [(row["eval_success"], -float(rate), start, rate) for row in rows if "eval_success" in row]
    best = max(found, default=(0.0, 0.0, STARTS[-1], RATES[1]))
    all_of_them = [{"start": s, "learning_rate": r, "success": value} for value, _, s, r in found]
    return {"start": best[2], "learning_rate": best[3], "success": best[0], "all": all_of_them}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="sciworld")
    parser.add_argument("--seconds", type=float, required=True, help="Time there is, from now.")
    parser.add_argument("--seeds", nargs="*", default=["31", "32", "33", "34", "35"])
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--arm-seconds", type=float, default=500.0, help="What an arm is taken to need at first.")
    parser.add_argument("--tail", nargs="*", default=[], help="Commands for the end, one after the other.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lease = Lease(options.env, time.monotonic() + options.seconds, options.out)

    lease.play([lease.experiment(f"clone-{start}", "clone", start) for start in STARTS], slots=2)
    dev = f"PANELS=tests/gpu/{options.env}/dev.json"
    jobs = [lease.experiment(f"dev-{s}-{rate}", f"dev {rate}", s) for s in STARTS for rate in RATES]
    jobs += [lease.experiment(f"dev-start-{s}", "eval start 0", s, f"env {dev} ") for s in STARTS]
    lease.play(jobs, slots=8)
    choice = choose(lease.runs)
    (lease.runs / "choice.json").write_text(json.dumps(choice, indent=1))
    lease.say(f"choice: {choice}")
    start, rate = str(choice["start"]), choice["learning_rate"]
    jobs = [lease.experiment(f"{arm}-{s}", f"train {arm} {s} {rate}", start) for s in options.seeds for arm in ARMS]
    jobs.insert(options.slots, lease.experiment("start-1", "eval start 1", start))
    lease.play(jobs, options.slots, options.arm_seconds)
    for number, command in enumerate(options.tail):
        lease.play([Job(f"tail-{number}", command)], slots=1)
    lease.pack(now=True)
    lease.say("done")
    (options.out / "done").touch()


if __name__ == "__main__":
    main()
