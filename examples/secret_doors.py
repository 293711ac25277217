"""Skill co-evolution on a world small enough for one CPU core: doors, each family of which opens to one secret word.

A wrong word fails, but the reply names the right one. Whoever opened a door of the family can write that down; whoever
reads it opens the next door. There are hundreds of families, so that nothing is gained by learning words by heart.

A tiny Llama is first cloned from made-up episodes: it says the word of a skill where it has one, and writes skills in
the right form, but seven of ten with a word **drawn at random**. Everything after that is `SkillTrainer` with sampled
skills:

    python examples/secret_doors.py warm --out runs/doors/warm
    python examples/secret_doors.py run --seed 0 --warm runs/doors/warm --out runs/doors/0
    python examples/secret_doors.py run --seed 0 --warm runs/doors/warm --out runs/doors/0x --swapped   # the control
    python examples/secret_doors.py summary runs/doors --out runs/doors   # intervals over seeds, and a plot

The control tries skills on doors of another family; all else is equal. Seeds differ in the words of the doors, in the
order of tasks and in everything sampled; they share the cloned model, as runs share a base model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import gymnasium
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

from cope_gym.evaluate import statistics
from cope_gym.skills.extraction import episode_text, with_skill
from cope_gym.skills.retrieval import Document, Hit, TaskIndex
from cope_gym.skills.skill import Skill
from cope_gym.trajectory import Trajectory
from cope_train.config import CoPEConfig
from cope_train.rollout.backends import Sampling, TransformersBackend
from cope_train.rollout.driver import Episode, Rollout, Setup
from cope_train.rollout.template import ChatTemplate
from cope_train.run_folder import read_metrics
from cope_train.sft import clone
from cope_train.skills.coevolution import CoEvolution, Sizes, baseline_outcomes, outcomes
from cope_train.skills.trainer import SkillTrainer

WORDS = ("moon", "river", "copper", "salt", "ember", "willow", "stone", "feather")
COLOURS = ("red", "blue", "green", "black", "white", "amber", "grey", "violet", "pink", "brown", "gold", "silver",
           "ivory", "teal", "coral", "olive", "plum", "navy", "lilac", "rust")  # fmt: skip
SHAPES = ("round", "tall", "narrow", "wide", "heavy", "old", "carved", "plain", "barred", "low", "double", "arched",
          "iron", "oaken", "glass", "painted")  # fmt: skip
DOORS = 4  # of a family
HELD_OUT = 60  # families that are never trained on
WARM_STEPS, STEPS = 400, 80
CAREFUL = 0.3  # share of the cloned skills that hold the word that was told; the others hold any
ARMS = (("trained", False, "#4453c8", "own family"), ("trained_swapped", True, "#d9480f", "control"))
KINDS = (("own", "own skill"), ("other", "another family's skill"))
SOLVER = "Open the door: say its word."
EXTRACTOR = "Write down as JSON which word opens such doors."
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


# The world


def families(world: int) -> list[str]:
    """Returns all families in an order that depends on the world; the last ones are held out."""
    names = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
    random.Random(world).shuffle(names)
    return names


def secret(family: str, world: int) -> str:
    """Returns the word that opens the doors of a family."""
    return WORDS[sha256(f"{world}/{family}".encode()).digest()[0] % len(WORDS)]


class Doors(gymnasium.Env[str, str]):
    """One turn: say a word. The task id is `FAMILY/NUMBER`."""

    def __init__(self, world: int) -> None:
        self.world = world

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Goes to a door."""
        self.family, number = (options or {})["task_id"].split("/")
        return f"A {self.family} door, number {number}.", self._info(False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Says a word; the reply tells the right one."""
        word = secret(self.family, self.world)
        won = action.strip() == word
        return f"It opens to {word}.", float(won), True, False, self._info(won)

    def _info(self, won: bool) -> dict[str, Any]:
        score = float(won)
        return {
            "score": score, "raw_score": score, "success": won, "action_valid": True, "category": self.family
        }  # fmt: skip


def tasks_of(names: Sequence[str]) -> list[str]:
    """Returns the task ids of families."""
    return [f"{name}/{number}" for name in names for number in range(DOORS)]


def documents(names: Sequence[str]) -> list[Document]:
    """Returns what retrieval searches."""
    return [
        Document(task, f"A {name} door, number {task.rpartition('/')[2]}.", name)
        for name in names
        for task in tasks_of([name])
    ]


class OtherFamily(TaskIndex):
    """The control: a skill is tried on doors of another family, so that what it says is about the wrong doors."""

    def search(
        self,
        query: str,
        k: int,
        exclude: str | None = None,
        category: str | None = None,
        max_similarity: float = 0.999,
    ) -> list[Hit]:
        """Searches among the doors of the next family."""
        names = list(dict.fromkeys(document.category for document in self.documents))
        other = names[(names.index(category or "") + 1) % len(names)]
        return super().search(query, k, exclude, other, max_similarity)


# The model


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of whole words; what stands between two words is one token, too."""
    pieces = pre_tokenizers.Split(Regex(r"\w+|[^\w]+"), "isolated")
    special = ["<pad>", "<unk>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate(special)}
    roles = "system\n user\n assistant\n u s first second alpha echo\n"  # the last ones: by which templates are probed
    for text in [roles, *(m["content"] for episode in warm_up_episodes(64, 0) for m in episode.messages)]:
        for piece, _ in pieces.pre_tokenize_str(text):
            vocabulary.setdefault(piece, len(vocabulary))
    for word in (*WORDS, *COLOURS, *SHAPES, *map(str, range(DOORS))):
        vocabulary.setdefault(word, len(vocabulary))
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pieces, decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<pad>", unk_token="<unk>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Returns an untrained Llama of half a million weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        # Both make it learn to copy a word within a hundred steps; without them it took more than it was given.
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    return LlamaForCausalLM(config)


def follow_episodes(count: int, seed: int) -> list[Trajectory]:
    """Makes solver's episodes with a skill, whose word is drawn at random and said."""
    chance = random.Random(seed)
    words = [chance.choice(WORDS) for _ in range(count)]
    return [_episode(with_skill(SOLVER, Skill("door", f"Say {w}."), 512, len), _door(chance), w) for w in words]


def warm_up_episodes(count: int, seed: int) -> list[Trajectory]:
    """Makes episodes of both roles. Doors open to words drawn at random, so nothing about real doors can be learnt."""
    chance = random.Random(seed)
    episodes: list[Trajectory] = []
    for _ in range(count):
        door = _door(chance)
        said, told = chance.choice(WORDS), chance.choice(WORDS)
        played = _episode(SOLVER, door, said)
        played.messages.append({"role": "user", "content": f"It opens to {told}."})
        played.success = said == told
        word = told if chance.random() < CAREFUL else chance.choice(WORDS)
        written = json.dumps({"name": "door", "description": f"Say {word}."})
        episodes += [played, _episode(EXTRACTOR, episode_text(played, 12000), written)]
    return episodes + follow_episodes(count, seed)


def _door(chance: random.Random) -> str:
    return f"A {chance.choice(COLOURS)} {chance.choice(SHAPES)} door, number {chance.randrange(DOORS)}."


def _episode(system: str, user: str, assistant: str) -> Trajectory:
    roles = zip(("system", "user", "assistant"), (system, user, assistant), strict=True)
    return Trajectory("doors", "", messages=[{"role": role, "content": text} for role, text in roles])


def warm_up(out: Path, steps: int) -> None:
    """Clones the made-up episodes and saves the model: following a skill first, which is learnt only by itself."""
    tokenizer = make_tokenizer()
    args = SFTConfig(
        str(out / "run"),
        max_steps=steps // 2,
        per_device_train_batch_size=48,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        logging_steps=20,
        disable_tqdm=True,
        seed=0,
    )
    followed = clone(make_model(tokenizer, 0), tokenizer, follow_episodes(steps * 24, 1), args).model
    trainer = clone(followed, tokenizer, warm_up_episodes(steps * 8, 2), args)
    trainer.model.save_pretrained(out)


# Training and evaluation


def config(out: Path, seed: int, steps: int) -> CoPEConfig:
    """The run: 4 sources a step, N = 8 skills, K = 2 doors, one door without a skill beside each."""
    prompt = out / "extractor.md"
    prompt.parent.mkdir(parents=True, exist_ok=True)
    prompt.write_text(EXTRACTOR, encoding="utf-8")
    return CoPEConfig(
        str(out),
        environment="doors",
        action_format="plain",
        skills=True,
        skill_count=8,
        skill_tasks=2,
        skill_baseline=True,
        skill_same_category=True,
        skill_encoder="bm25",
        skill_tokens=24,
        skill_prompt=str(prompt),
        skill_entropy_coef=0.0,  # nothing is known at the start, so everything depends on exploration
        max_turns=1,
        max_turn_tokens=4,
        max_episode_tokens=64,
        per_device_train_batch_size=96,
        gradient_accumulation_steps=1,
        loss_type="grpo",
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        max_steps=steps,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        ordered_rollouts=True,  # the same on every machine, whatever else it does
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=seed,
    )


def lift(model: Any, template: ChatTemplate, names: Sequence[str], world: int, args: CoPEConfig) -> dict[str, Any]:
    """Success by family with the family's own skill, with another family's, and without one. Everything is greedy."""
    setup = Setup(lambda: Doors(world), template, SOLVER, "plain", args.limits(), {"env": "doors"}, ordered=True)
    sizes = Sizes(1, 2, 1, baseline=True, skill_tokens=args.skill_tokens, prompt=EXTRACTOR)
    found: dict[str, dict[str, float]] = {"none": {}}
    for arm, kind in (("own", TaskIndex), ("other", OtherFamily)):
        index = kind(documents(names), "bm25")
        backend = TransformersBackend(
            model, Sampling(temperature=0), template.stop_ids, template.tokenizer.pad_token_id, 256
        )
        plan = CoEvolution(
            [f"{name}/0" for name in names],
            sizes,
            setup,
            lambda task, text, index=index: [  # type: ignore[misc]
                hit.document.id for hit in index.search(text, 2, task, task.rpartition("/")[0])
            ],
            len,
            (world, arm),
        )
        Rollout(plan.jobs(), setup, backend, then=plan.then).play()
        for name, line in zip(names, plan.lineages, strict=True):
            found.setdefault(arm, {})[name] = outcomes(line, sizes, _won).mean().item()
            if arm == "own":
                found["none"][name] = baseline_outcomes(line, sizes, _won).mean().item()
    return found


def _won(episode: Episode) -> float | None:
    return None if episode.failed else float(episode.trajectory.success)


def run(warm: Path, out: Path, seed: int, swapped: bool, steps: int) -> dict[str, Any]:
    """Trains and evaluates once; writes `result.json` to the folder."""
    names = families(seed)
    trained, held_out = names[:-HELD_OUT], names[-HELD_OUT:]
    tokenizer = make_tokenizer()
    template = ChatTemplate(tokenizer)
    model = LlamaForCausalLM.from_pretrained(warm)
    args = config(out, seed, steps)
    before = lift(model.eval(), template, held_out, seed, args)
    trainer = SkillTrainer(
        model,
        args,
        tasks_of(trained),
        (OtherFamily if swapped else TaskIndex)(documents(trained), "bm25"),
        make_env=lambda: Doors(seed),
        system_prompt=SOLVER,
        processing_class=tokenizer,
    )
    trainer.train()
    rows = [row for row in read_metrics(out / "metrics.jsonl") if "skills/extractor_reward" in row]
    kept = ("extractor_reward", "outcome", "outcome_without", "parsed")
    result = {
        "seed": seed,
        "swapped": swapped,
        "weights": sum(p.numel() for p in model.parameters()),
        "curve": {name: [row.get(f"skills/{name}") for row in rows] for name in kept},
        "before": before,
        "after": lift(trainer.model.eval(), template, held_out, seed, args),
    }
    (out / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return result


# What it says


def headline(result: dict[str, Any]) -> dict[str, float]:
    """Numbers of one run: the extractor's reward in the first and the last fifth, and the lift of each arm after."""
    curve = result["curve"]["extractor_reward"]
    fifth = max(len(curve) // 5, 1)
    means = {arm: sum(by.values()) / len(by) for arm, by in result["after"].items()}
    return {
        "reward_first": sum(curve[:fifth]) / fifth,
        "reward_last": sum(curve[-fifth:]) / fifth,
        "lift_own": means["own"] - means["none"],
        "lift_other": means["other"] - means["none"],
    }


def summarise(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Intervals over seeds and, for lift, over families as well."""
    summary: dict[str, Any] = {"chance": 1 / len(WORDS)}
    for name, swapped in (("trained", False), ("trained_swapped", True)):
        chosen = [result for result in results if result["swapped"] is swapped]
        if not chosen:
            continue
        numbers = [headline(result) for result in chosen]
        rise = [n["reward_last"] - n["reward_first"] for n in numbers]
        summary[name] = {
            "seeds": [result["seed"] for result in chosen],
            "reward_first": asdict(statistics.estimate([n["reward_first"] for n in numbers])),
            "reward_last": asdict(statistics.estimate([n["reward_last"] for n in numbers])),
            "reward_rise": asdict(statistics.estimate(rise)),
        }
        for when in ("before", "after"):
            for arm in ("own", "other"):
                # The families of different seeds are different ones: places in the list stand for them.
                value = [_places(result[when][arm]) for result in chosen]
                none = [_places(result[when]["none"]) for result in chosen]
                summary[name][f"lift_{arm}_{when}"] = asdict(statistics.crossed(value, none))
    return summary


def _places(by_family: dict[str, float]) -> dict[str, float]:
    return {str(i): value for i, value in enumerate(by_family.values())}


def draw(results: Sequence[dict[str, Any]], summary: dict[str, Any], path: Path) -> None:
    """Draws the extractor's reward over training, and the lift on doors of families that were never trained on."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    bars: list[tuple[str, dict[str, Any], str]] = []
    for name, swapped, colour, label in ARMS:
        curves = [smooth(r["curve"]["extractor_reward"]) for r in results if r["swapped"] is swapped]
        for curve in curves:
            left.plot(curve, color=colour, alpha=0.3, linewidth=1)
        if curves:
            left.plot([sum(c) / len(c) for c in zip(*curves, strict=True)], color=colour, linewidth=2, label=label)
            bars += [(f"{label}:\n{what}", summary[name][f"lift_{arm}_after"], colour) for arm, what in KINDS]
    left.axhline(summary["chance"], color="#868e96", linestyle=":", label="chance")
    left.set(title="Extractor's reward in training", xlabel="step", ylim=(0, 1.02))
    left.legend(frameon=False, fontsize=8)
    for row, (_, lift, colour) in enumerate(bars):
        right.plot([lift["low"], lift["high"]], [row, row], color=colour, linewidth=6, alpha=0.3)
        right.plot([lift["value"]], [row], "o", color=colour)
    right.axvline(0, color="#868e96", linestyle=":")
    right.set(title="Lift on unseen families, 95 %", xlabel="success with a skill − without")
    right.set_yticks(range(len(bars)), [bar[0] for bar in bars], fontsize=8)
    right.invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def smooth(values: Sequence[float], reach: int = 2) -> list[float]:
    """Centred moving average."""
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    cloned = commands.add_parser("warm")
    cloned.add_argument("--out", type=Path, required=True)
    cloned.add_argument("--steps", type=int, default=WARM_STEPS)
    one = commands.add_parser("run")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--warm", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--swapped", action="store_true", help="Control: skills are tried on doors of another family.")
    one.add_argument("--steps", type=int, default=STEPS)
    summed = commands.add_parser("summary")
    summed.add_argument("runs", type=Path)
    summed.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "warm":
        warm_up(options.out, options.steps)
    elif options.command == "run":
        result = run(options.warm, options.out, options.seed, options.swapped, options.steps)
        print(json.dumps(headline(result)))
    else:
        results = [json.loads(path.read_text()) for path in sorted(options.runs.glob("*/result.json"))]
        summary = summarise(results)
        draw(results, summary, options.out / "secret_doors.png")
        curves = [{key: result[key] for key in ("seed", "swapped", "curve")} for result in results]
        (options.out / "secret_doors.json").write_text(json.dumps({**summary, "runs": curves}), encoding="utf-8")
        print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
