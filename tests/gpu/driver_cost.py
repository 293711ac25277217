"""What the rollout driver itself costs on a CPU: an engine and an environment that take no time.

    python tests/gpu/driver_cost.py --episodes 128 --turns 15

Prints one JSON line; `main_ms_per_turn` is processor time of the driver's thread, which an engine in the same process
has to wait for.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

import gymnasium
from transformers import AutoTokenizer

from cope_train.models import quickstart_model
from cope_train.rollout.backends import Completion, Request
from cope_train.rollout.driver import Job, Limits, Rollout, Setup
from cope_train.rollout.template import ChatTemplate

WORDS = ["the", "room", "door", "kitchen", "you see", "open", "closed", "table", "metal pot", "of water", "hallway"]
REPLY = (
    "Thought: I should look around the room and go on to the kitchen, where the pot is.\nAction: open door to kitchen"
)


class Instant(gymnasium.Env[str, str]):
    """Answers at once, with other words each time."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):  # type: ignore[override]
        self.random = random.Random(seed)
        return self.text(200), {}

    def step(self, action: str):  # type: ignore[override]
        return self.text(60), 0.0, False, False, {"action_valid": True}

    def text(self, words: int) -> str:
        return " ".join(self.random.choice(WORDS) for _ in range(words))


class Engine:
    """Gives one token of every running turn a step, as vLLM does."""

    batches = False
    context = 100_000

    def __init__(self, reply: list[int]) -> None:
        self.reply = reply
        self.running: list[tuple[Request, int]] = []
        self.step = 0

    def submit(self, request: Request) -> None:
        self.running.append((request, self.step + len(self.reply)))

    def poll(self) -> list[Completion]:
        self.step += 1
        over = [request for request, end in self.running if end <= self.step]
        self.running = [(request, end) for request, end in self.running if end > self.step]
        return [Completion(r.key, list(self.reply), [-0.1] * len(self.reply), True) for r in over]

    def release(self, key: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    template = ChatTemplate(AutoTokenizer.from_pretrained(quickstart_model()))
    limits = Limits(options.turns, 64, 8192, 1600, 600)
    setup = Setup(Instant, template, "You are an agent in a science lab.", "react", limits, {"env": "none"})
    engine = Engine(template.reply(REPLY))
    rollout = Rollout([Job(str(i), i, (i,)) for i in range(options.episodes)], setup, engine)
    wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    turns = sum(len(episode.trajectory.turns) for episode in rollout.play())
    thread, process = time.thread_time() - thread, time.process_time() - process
    result = {
        "turns": turns,
        "main_ms_per_turn": 1e3 * thread / turns,
        "process_ms_per_turn": 1e3 * process / turns,
        "seconds": time.perf_counter() - wall,
    }
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
