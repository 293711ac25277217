"""Made-up runs: episodes, an evaluation folder, a training run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from evaluate_toy import evaluation

from cope_gym import trajectory
from cope_gym.evaluate.results import summarise
from cope_gym.evaluate.store import Store
from cope_gym.trajectory import Trajectory, Turn

CATEGORIES = ("boil", "find-plant", "use-thermometer")
NOISE = Random(0).randbytes(200_000).hex(" ", 4)  # hardly compressible
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&lt;b&gt;"


def episode(number: int, success: bool, *, turns: int = 4, tokens: bool = False, chars: int = 200) -> Trajectory:
    """An episode whose texts depend on the number only."""
    chance = Random(number)
    category = CATEGORIES[number % 3]
    made = Trajectory("walk", f"{category}/{number // 3}", "test", category, seed=number, policy="wanderer")
    made.messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": f"Task {number}."}]
    for index in range(turns):
        text = f"Thought: 😀 step {index}.\nAction: go {chance.randrange(1000)}"
        start = text.index("go ")
        made.messages.append({"role": "assistant", "content": text})
        score = (index + 1) / turns if success else 0.5 * (index + 1) / turns
        turn = Turn(index, len(made.messages) - 1, text[start:], (start, len(text)), True, 1 / turns, score, tokens=9)
        made.turns.append(turn)
        place = chance.randrange(len(NOISE) - chars)
        made.messages.append({"role": "user", "content": f"You see {NOISE[place : place + chars]}."})
    made.score = made.turns[-1].score
    made.reward, made.raw_score = made.score, 100 * made.score
    made.success = made.terminated = success
    made.truncated = not success
    if tokens:
        pieces = [word for message in made.messages for word in message["content"].split()]
        made.tokens = {
            "ids": list(range(len(pieces))),
            "mask": [int(i % 2 == 1) for i in range(len(pieces))],
            "text": [f"{piece} " for piece in pieces],
            "advantages": [0.5 - (i % 3) / 2 for i in range(len(pieces))],
        }
    return made


def write_evaluation(folder: Path, successes: Sequence[bool], step: int | None = None, **changes: Any) -> None:
    """An evaluation folder as `cope eval` leaves it; episode i solves its task where `successes` says so."""
    episodes = [episode(i, success) for i, success in enumerate(successes)]
    for each in episodes:
        each.step = step

    class Policy:
        name, batch_size = "wanderer", 1
        settings = {} if step is None else {"step": step}

    settings = evaluation().settings(Policy())  # type: ignore[arg-type]
    settings |= changes
    Store(folder).finish(episodes, summarise(episodes, len(episodes), settings))


def write_run(
    folder: Path, before: Sequence[bool], after: Sequence[bool], steps: int = 30, shift: float = 0.0
) -> None:
    """A training run as the trainer leaves it."""
    write_evaluation(folder / "evaluations" / "step_000000", before, 0)
    write_evaluation(folder / "evaluations" / f"step_{steps:06d}", after, steps)
    rows = [
        {
            "step": s,
            "seconds": 2.0 * s,
            "reward": s / steps + shift,
            "loss": 1 / s,
            "forecast/loss": 2 / s,
            "epoch": 0.1,
        }
        for s in range(1, steps + 1)
    ]
    lines = [json.dumps(row) for row in rows]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 31, "rew']))
    for step in (0, 10, 20):
        played = [episode(50 + step + i, i % 2 == 0, tokens=True) for i in range(4)]
        for each in played:
            each.step = step
        trajectory.write(folder / "trajectories" / f"step_{step:06d}.jsonl", played)
