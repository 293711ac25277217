"""Does a policy gain from forecasting its own actions, or from any extra targets? A small world for one CPU core.

A house of eight rooms; a parcel is to be brought from one room to another. A tiny Llama clones clumsy solutions and is
then trained by GRPO, in three arms from the same start and on the same tasks:

* `grpo`: nothing else;
* `forecast`: with the forecasting loss;
* `placebo`: with as many target tokens, but the actions of other episodes (`forecast_derange`).

    python examples/errands.py run --seed 0 --out runs/errands    # clone, train the arms, evaluate on held-out tasks
    python examples/errands.py summary runs/errands --out docs/results/errands

World, sizes and coefficients were fixed in a commit before the first run; see docs/results/errands.md.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import deque
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import gymnasium
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

from cope_gym.evaluate.compare import compare
from cope_gym.evaluate.episode import Rules
from cope_gym.evaluate.panels import Panel
from cope_gym.evaluate.runner import Evaluation, evaluate
from cope_gym.spaces import TextSpace
from cope_gym.trajectory import Trajectory
from cope_train.config import CoPEConfig
from cope_train.policies import LocalModel
from cope_train.rollout.backends import Sampling
from cope_train.sft import clone
from cope_train.trainer import CoPETrainer

DOORS = (
    "hall kitchen", "hall study", "hall porch", "kitchen cellar", "study attic", "porch garden", "garden shed",
    "cellar shed",
)  # fmt: skip
ROOMS = tuple(sorted({room for door in DOORS for room in door.split()}))
EXITS = {
    room: tuple(sorted(other for door in DOORS if room in door.split() for other in door.split() if other != room))
    for room in ROOMS
}
TASKS = [f"{start}-{place}-{goal}" for start, place, goal in product(ROOMS, ROOMS, ROOMS) if place != goal]
SYSTEM = "Run the errand. Reply with Action: go ROOM, take or put."
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The protocol
TURNS, TURN_TOKENS = 16, 8
TRAINING_TASKS, HELD_OUT_TASKS, SAMPLES = 192, 64, 4
CLONED, CLONING_EPOCHS, CLUMSINESS = 600, 5, 0.2
STEPS, GROUPS, GROUP_SIZE, LEARNING_RATE = 16, 8, 8, 3e-4
FORECAST = {"forecast": True, "forecast_coef": 0.1, "forecast_horizon": 3, "forecast_gate": "wins"}
T_QUANTILES = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # 97.5 %, by degrees of freedom
ARMS: dict[str, dict[str, Any]] = {"grpo": {}, "forecast": FORECAST, "placebo": FORECAST | {"forecast_derange": True}}


class Errands(gymnasium.Env[str, str]):
    """The house. A task id is `START-PLACE-GOAL`."""

    observation_space = TextSpace()
    action_space = TextSpace()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an errand."""
        super().reset(seed=seed)
        self.room, self.place, self.goal = (options or {})["task_id"].split("-")
        self.carried = False
        return self._look(), self._info(True, False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Goes, takes or puts."""
        verb, _, what = action.strip().partition(" ")
        done = False
        before = (self.room, self.carried)
        if verb == "go" and what in EXITS[self.room]:
            self.room = what
        elif action.strip() == "take" and self.place == self.room and not self.carried:
            self.carried = True
        elif action.strip() == "put" and self.carried:
            self.carried, self.place = False, self.room
            done = self.room == self.goal
        valid = before != (self.room, self.carried)
        return self._look(), float(done), done, False, self._info(valid, done)

    def _look(self) -> str:
        errand = f"Bring it to the {self.goal}." if self.carried else f"Fetch it from the {self.place}."
        return f"You are in the {self.room}. Doors: {', '.join(EXITS[self.room])}. {errand}"

    def _info(self, valid: bool, done: bool) -> dict[str, Any]:
        score = float(done)
        return {
            "score": score, "raw_score": score, "success": done, "action_valid": valid, "category": self.goal,
            "split": "train",
        }  # fmt: skip


def way(start: str, goal: str) -> list[str]:
    """Returns the rooms of a shortest way."""
    queue, seen = deque([[start]]), {start}
    while queue[0][-1] != goal:
        path = queue.popleft()
        for room in EXITS[path[-1]]:
            if room not in seen:
                seen.add(room)
                queue.append([*path, room])
    return queue[0][1:]


def clumsy_solution(task: str, chance: random.Random) -> list[str]:
    """Solves an errand; now and then takes a wrong door first."""
    room, place, goal = task.split("-")
    actions: list[str] = []
    for target, end in ((place, "take"), (goal, "put")):
        while room != target:
            astray = chance.random() < CLUMSINESS
            room = chance.choice(EXITS[room]) if astray else way(room, target)[0]
            actions.append(f"go {room}")
        actions.append(end)
    return actions


def expert_episode(task: str, chance: random.Random) -> Trajectory:
    """Plays a clumsy solution."""
    env = Errands()
    observation, _ = env.reset(options={"task_id": task})
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": observation}]
    for action in clumsy_solution(task, chance):
        observation, *_ = env.step(action)
        messages += [
            {"role": "assistant", "content": f"Action: {action}"},
            {"role": "user", "content": observation},
        ]
    return Trajectory("errands", task, messages=messages, success=True)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a byte-level tokenizer that has a token for every word of the world."""
    special = ["<pad>", "<|im_start|>", "<|im_end|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    corpus = [m["content"] for task in TASKS for m in expert_episode(task, random.Random(task)).messages]
    core.train_from_iterator([*corpus, "user assistant system\n"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<pad>")
    tokenizer.chat_template = CHATML
    return tokenizer


def clone_start(seed: int, folder: Path) -> None:
    """Clones clumsy solutions into a model of 0.3 million weights; every arm of a seed begins from it."""
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    chance = random.Random(seed)
    episodes = [expert_episode(task, chance) for task in chance.choices(split()[0], k=CLONED)]
    args = SFTConfig(
        str(folder / "cloning"), num_train_epochs=CLONING_EPOCHS, per_device_train_batch_size=4, learning_rate=3e-3,
        max_length=None, save_strategy="no", report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, logging_steps=10, seed=seed,
    )  # fmt: skip
    model = clone(LlamaForCausalLM(config), tokenizer, episodes, args).model
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@cache
def split() -> tuple[list[str], list[str]]:
    """Returns training tasks and held-out tasks; no pair of place and goal is in both."""
    chance = random.Random("errands")
    pairs = sorted({tuple(task.split("-")[1:]) for task in TASKS})
    chance.shuffle(pairs)
    unseen = set(pairs[: len(pairs) // 4])
    tasks = chance.sample(TASKS, len(TASKS))
    old = [task for task in tasks if tuple(task.split("-")[1:]) not in unseen]
    new = [task for task in tasks if tuple(task.split("-")[1:]) in unseen]
    return old[:TRAINING_TASKS], new[:HELD_OUT_TASKS]


def train(arm: str, seed: int, model: Path, folder: Path) -> None:
    """Trains one arm."""
    args = CoPEConfig(
        str(folder), environment="errands", action_format="react", max_turns=TURNS, max_turn_tokens=TURN_TOKENS,
        max_episode_tokens=1200, per_device_train_batch_size=16, gradient_accumulation_steps=GROUPS * GROUP_SIZE // 16,
        num_generations=GROUP_SIZE, learning_rate=LEARNING_RATE, lr_scheduler_type="constant", max_steps=STEPS,
        save_strategy="no", report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        seed=seed, **ARMS[arm],
    )  # fmt: skip
    trainer = CoPETrainer(str(model), args, split()[0], make_env=Errands, system_prompt=SYSTEM)
    trainer.train()
    trainer.save_model(str(folder / "model"))


def evaluate_arm(seed: int, model: Path, folder: Path) -> dict[str, Any]:
    """Plays the held-out tasks; the same episodes' seeds in every arm."""
    panel = Panel("errands", "held_out", "held_out", tuple(split()[1])).sealed()
    policy = LocalModel(str(model), Sampling(1.0), TURN_TOKENS, batch_size=64)
    evaluation = Evaluation(
        panel, Rules("errands", "react", TURNS, SYSTEM), samples=SAMPLES, seed=seed, concurrency=64
    )
    return evaluate(evaluation, policy, Errands, folder)


def run(seed: int, out: Path, arms: list[str]) -> None:
    """Clones, trains and evaluates the arms of one seed; what is there already is not done again."""
    model = out / "start" / str(seed)
    for arm in ["start", *arms]:
        folder = out / arm / str(seed)
        held_out = folder / "evaluations" / "held_out"
        if (held_out / "result.json").is_file():
            continue
        if arm == "start":
            clone_start(seed, folder)
        else:
            train(arm, seed, model, folder)
        result = evaluate_arm(seed, folder if arm == "start" else folder / "model", held_out)
        print(seed, arm, result["metrics"]["success"]["value"], flush=True)


def summary(folder: Path, out: Path) -> None:
    """Compares the arms over seeds, with GRPO and with the placebo as the reference.

    Arms of one seed share their start, so differences of seeds are paired; six of them carry a t interval.
    """
    specs = {
        arm: f"{arm}=" + ",".join(str(path) for path in sorted((folder / arm).iterdir())) for arm in ("start", *ARMS)
    }
    for name, arms in {"grpo": ("grpo", "forecast", "placebo", "start"), "placebo": ("placebo", "forecast")}.items():
        table = compare([specs[arm] for arm in arms], out / f"against_{name}")
        seeds = [row["by_seed"]["success"] for row in table["arms"]]
        for arm, values in zip(arms[1:], seeds[1:], strict=True):
            mean, half = paired_by_seed(values, seeds[0])
            print(f"{arm} minus {name}: {mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]")


def paired_by_seed(values: list[float], reference: list[float]) -> tuple[float, float]:
    """Returns the mean difference and half the width of its 95 % t interval."""
    differences = torch.tensor(values, dtype=torch.float64) - torch.tensor(reference, dtype=torch.float64)
    width = T_QUANTILES[len(differences) - 1] * differences.std().item() / len(differences) ** 0.5
    return differences.mean().item(), width


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("--seed", type=int, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--arms", nargs="*", default=list(ARMS), choices=ARMS)
    every = commands.add_parser("summary")
    every.add_argument("folder", type=Path)
    every.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "run":
        run(given.seed, given.out, given.arms)
    else:
        summary(given.folder, given.out)


if __name__ == "__main__":
    main()
