"""How close rollouts come to raw vLLM: a real benchmark, vLLM colocate, LoRA, independent episodes.

Prints one JSON line: tokens per second of a whole rollout (first request to last episode's end, environment
included), of raw vLLM on the same per-turn prompts with prefix caching and log-probabilities (turn after turn, as
they follow from each other, and all at once, which no rollout can do), and the seconds of a training step by part;
`driver_seconds` is what is neither engine nor waiting. With `--skew` the same episodes are then played with slow
steps (one in twenty takes a second, the others 20 ms), each on its own and with a barrier a turn. With `--admission`
they are played once more for every STEPS,SHARE of `cope_train.rollout.vllm.Admission`.

    python tests/gpu/rollout_speed.py --model PATH --episodes 128 --turns 16 --steps 3 [--environment webshop] [--skew]
        [--admission 8,0.125 16,0.25 32,0.5]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from peft import LoraConfig

import cope_gym
from cope_train.config import CoPEConfig
from cope_train.generation import open_backend
from cope_train.rollout import vllm
from cope_train.rollout.driver import Rollout
from cope_train.run_folder import read_metrics
from cope_train.trainer import CoPETrainer

TASKS = {"sciworld": ("find-living-thing", "boil"), "webshop": ()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", default="runs/speed")
    parser.add_argument("--environment", default="sciworld", choices=sorted(TASKS))
    parser.add_argument("--category", nargs="*", help="Tasks of these categories.")
    parser.add_argument("--skew", action="store_true")
    parser.add_argument("--admission", nargs="*", default=[], metavar="STEPS,SHARE")
    parser.add_argument("--system-prompt")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--turn-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--objectives", action="store_true", help="Forecasting and temporal ensemble on.")
    options = parser.parse_args()

    categories = options.category or TASKS[options.environment]
    infos = cope_gym.tasks(options.environment, split="train").infos
    tasks = [t.id for t in infos if not categories or t.category in categories]
    args = CoPEConfig(
        output_dir=options.out,
        environment=options.environment,
        environment_options={"simplifications": "easy"} if options.environment == "sciworld" else {},
        system_prompt=options.system_prompt,
        max_turns=options.turns,
        max_turn_tokens=options.turn_tokens,
        max_episode_tokens=6000,
        first_observation_chars=1600,
        observation_chars=600,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=8192,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=options.episodes // 16,
        num_generations=8,
        max_steps=options.steps,
        learning_rate=1e-4,
        beta=0.0,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "bfloat16"},
        forecast=options.objectives,
        ensemble=options.objectives,
        ensemble_coef=0.01 if options.objectives else 0.0,
        save_strategy="no",
        report_to=[],
    )
    trainer = CoPETrainer(
        options.model, args, tasks, peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    trainer.train()
    rows = [row for row in read_metrics(Path(options.out) / "metrics.jsonl") if "seconds/rollout" in row]
    last = rows[-1]
    requests = _requests(trainer.source.episodes)
    tokens = sum(length for _, _, length in requests)
    seconds = last["seconds/rollout"] - last["seconds/rollout_start"]  # from the first request on
    by_turn = [[(ids, length) for turn, ids, length in requests if turn == t] for t in range(options.turns)]
    raw, at_once = _raw(trainer, by_turn), _raw(trainer, [[call for calls in by_turn for call in calls]])
    result: dict[str, Any] = {
        "episodes": len(trainer.source.episodes),
        "turns": len(requests),
        "tokens": tokens,
        "rollout_tokens_per_second": tokens / seconds,
        "raw_tokens_per_second": tokens / raw,
        "raw_at_once_tokens_per_second": tokens / at_once,
        "driver_seconds": seconds - last["seconds/generate"] - last["seconds/environment_waiting"],
        "seconds": {k: v for k, v in last.items() if k.startswith("seconds/")},
        "step_time": [row.get("step_time") for row in rows],
        "importance_ratio": last.get("sampling/importance_sampling_ratio/mean"),
        "peak_gb": torch.cuda.max_memory_allocated() / 2**30,
        "turn_lengths": Counter(min(length, options.turn_tokens) // 8 * 8 for _, _, length in requests),
    }
    result["share_of_raw"] = raw / seconds
    result["share_of_raw_at_once"] = at_once / seconds
    if options.skew:
        result["skewed_seconds"] = {name: _skewed(trainer, name == "barrier") for name in ("alone", "barrier")}
    result["admission"] = {name: _admitted(trainer, name) for name in options.admission}
    print(json.dumps(result), flush=True)


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment some of whose steps take long."""

    def step(self, action: Any) -> Any:
        time.sleep(1.0 if random.random() < 0.05 else 0.02)
        return self.env.step(action)


def _skewed(trainer: CoPETrainer, barrier: bool) -> dict[str, float]:
    """Seconds and tokens of the last rollout's jobs, played in slow environments."""
    source = trainer.source
    make = source.setup.make_env
    setup = replace(source.setup, make_env=lambda: Slow(make()), ordered=barrier, threads=len(source.episodes))
    random.seed(0)
    result, episodes = _played(trainer, setup)
    return result | {"actions": sum(bool(turn.action) for e in episodes for turn in e.trajectory.turns)}


def _admitted(trainer: CoPETrainer, rule: str) -> dict[str, float]:
    """The last rollout's jobs once more, with another rule of admission."""
    steps, share = rule.split(",")
    result, episodes = _played(trainer, trainer.source.setup, vllm.Admission(int(steps), float(share)))
    calls = [[(ids, n) for turn, ids, n in _requests(episodes) if turn == t] for t in range(trainer.args.max_turns)]
    return result | {"share_of_raw": _raw(trainer, calls) / result["seconds"]}


def _played(trainer: CoPETrainer, setup: Any, admission: vllm.Admission | None = None) -> tuple[dict[str, Any], Any]:
    source = trainer.source
    with open_backend(trainer, source.config.sampling(), setup.template) as backend:
        backend.admission = admission or backend.admission
        rollout = Rollout([episode.job for episode in source.episodes], setup, backend)
        episodes = rollout.play()
    requests = _requests(episodes)
    return {
        "seconds": rollout.clock.total - rollout.clock.start,
        "polls": rollout.clock.polls,
        "turns": len(requests),
        "tokens": sum(length for _, _, length in requests),
    }, episodes


def _requests(episodes: list[Any]) -> list[tuple[int, list[int], int]]:
    """Number, prompt and number of sampled tokens of every turn, as the rollout asked for them."""
    return [
        (turn.index, e.buffer.ids[: turn.start], turn.end - turn.start) for e in episodes for turn in e.buffer.turns
    ]


def _raw(trainer: CoPETrainer, calls: list[list[tuple[list[int], int]]]) -> float:
    """Seconds that vLLM alone needs for the same prompts, lengths fixed, one call after the other.

    Training needs log-probabilities, which cost vLLM time of its own: they are asked for here as well.
    """
    from vllm import SamplingParams

    llm = trainer.vllm_generation.llm
    llm.reset_prefix_cache()
    started = time.perf_counter()
    for call in filter(None, calls):
        params = [
            SamplingParams(max_tokens=length, min_tokens=length, ignore_eos=True, detokenize=False, logprobs=0)
            for _, length in call
        ]
        llm.generate([{"prompt_token_ids": ids} for ids, _ in call], params, use_tqdm=False)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
