"""What forecasting and temporal ensemble cost: the update alone, against TRL's fused head, on random weights.

    cope bench objectives --turns 5 --turns 20 --json objectives.json

Three arms on the same episodes: `stock` (log-probs and entropies of the policy's tokens by TRL's fused head, batch
left-padded), `packed` and `unpacked` (the same and both objectives, every trajectory branched). No rollout, no
optimizer: forward and backward of one micro-batch. The first passes, in which kernels are compiled, do not count.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig
from trl.trainer.utils import add_fused_lm_head

from cope_gym.errors import InputError
from cope_gym.evaluate.plots import learning_curves
from cope_train.objective_passes import Hidden, Passes, PassOptions
from cope_train.objectives.forecasting import forecast_loss
from cope_train.objectives.projection import score
from cope_train.objectives.records import ActionTurn, Branch, Record, Slot
from cope_train.objectives.rows import Sample, cover_tokens, forecast_tokens, policy_tokens
from cope_train.objectives.temporal_ensemble import mix_members, temporal_ensemble_kl, temporal_ensemble_loss

# Tokens: first message, observation, turn (of which the last are the action block), cue, text between two forecasts.
PROMPT, OBSERVATION, TURN, BLOCK, CUE, GLUE, HEADER = 500, 150, 60, 15, 39, 14, 4
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 512},
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152064},
}  # fmt: skip
ARMS = ("stock", "packed", "unpacked")


def make_sample(turns: int, horizon: int, vocabulary: int, rng: random.Random, length: int = TURN) -> Sample:
    """An episode of random tokens with all its branches; `length` tokens a turn."""
    ids = [rng.randrange(vocabulary) for _ in range(PROMPT)]
    mask, actions = [0] * PROMPT, []
    for t in range(turns):
        prefix_end, start = len(ids) - HEADER, len(ids)
        ids += [rng.randrange(vocabulary) for _ in range(length)]
        mask += [1] * length
        block, end = start + length - BLOCK, start + length
        actions.append(ActionTurn(t, start, end, prefix_end, block, end, block + 2, end))
        if t < turns - 1:
            ids += [rng.randrange(vocabulary) for _ in range(OBSERVATION)]
            mask += [0] * OBSERVATION
    record = Record(ids, PROMPT, mask, tuple(actions), "g", success=True)
    branches = [_branch(ids, actions[t : t + horizon], vocabulary, rng) for t in range(turns)]
    return Sample(record, branches, 1.0, [True] * turns)


def _branch(ids: list[int], targets: Sequence[ActionTurn], vocabulary: int, rng: random.Random) -> Branch:
    tokens = [rng.randrange(vocabulary) for _ in range(CUE)]
    mask, slots = [0] * CUE, []
    for turn in targets:
        start = len(tokens)
        tokens += ids[turn.block_start : turn.block_end]
        slots.append(Slot(turn.index, start + 2, len(tokens), start, len(tokens)))
        mask += [1] * (len(tokens) - start)
        if turn is not targets[-1]:
            tokens += [rng.randrange(vocabulary) for _ in range(GLUE)]
            mask += [0] * GLUE
    return Branch(targets[0].index, targets[0].prefix_end, tokens, mask, [1.0] * len(tokens), tuple(slots))


def stock_loss(model: Any, samples: Sequence[Sample], device: torch.device) -> torch.Tensor:
    """Policy loss as TRL computes it: left-padded, fused head."""
    width = max(len(s.record.ids) for s in samples)
    rows = [([0] * (width - len(s.record.ids)), s.record) for s in samples]
    ids = torch.tensor([pad + record.ids for pad, record in rows], device=device)
    attention = torch.tensor([pad + [1] * len(record.ids) for pad, record in rows], device=device)
    loss_mask = torch.tensor([pad + record.loss_mask for pad, record in rows], device=device)
    labels = ids.masked_fill(loss_mask == 0, -100)
    log_probs = model(input_ids=ids, attention_mask=attention, labels=labels, fused_lm_head=True).log_probs
    return -log_probs.sum() / loss_mask.sum()


def joint_loss(hidden: Hidden, samples: Sequence[Sample]) -> torch.Tensor:
    """Policy, forecasting and ensemble terms; without forecasts that have been learnt already."""
    whole, device = hidden.whole(), hidden.states.device
    source, target = policy_tokens(samples, hidden.places)[0].tensors(device)
    policy = -score(hidden.states[source], target, hidden.head).log_probs.mean()
    covers = cover_tokens(samples, whole.places)
    source, target = covers.tensors(device)
    member, owner = covers.member_tensors(device)
    mixed = mix_members(whole.states[member], owner, target, hidden.head)
    kl, _ = temporal_ensemble_kl(whole.states[source], hidden.head, target, mixed, 0.5)
    return policy + forecast_term(hidden, samples) + 0.01 * temporal_ensemble_loss(kl, len(covers))


def forecast_term(hidden: Hidden, samples: Sequence[Sample]) -> torch.Tensor:
    """The forecasting term on the branches that `hidden` holds."""
    learnt, _ = forecast_tokens(samples, hidden.places)
    source, target = learnt.tensors(hidden.states.device)
    weight = torch.tensor(learnt.weight, device=hidden.states.device)
    count = sum(sample.forecast_targets() for sample in samples)
    return 0.01 * forecast_loss(score(hidden.states[source], target, hidden.head).log_probs, weight, count)


def unpacked_loss(passes: Passes, model: Any, samples: Sequence[Sample]) -> torch.Tensor:
    """The same, branches run some at a time with a backward pass each."""
    early = torch.zeros((), device=passes.device)

    def learn(hidden: Hidden) -> None:
        nonlocal early
        loss = forecast_term(hidden, samples)
        loss.backward()
        early = early + loss.detach()

    alone = passes.run_alone(samples, learn=learn)
    return joint_loss(passes.separate(model, samples, alone), samples) + early


def measure(step: Callable[[], torch.Tensor], model: Any, device: torch.device, repeats: int) -> dict[str, float]:
    """Median seconds and peak memory of forward and backward."""
    cuda = device.type == "cuda"
    seconds: list[float] = []
    for i in range(repeats + 2):
        if i == 2 and cuda:
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        loss = step()
        loss.backward()
        value = loss.item()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        model.zero_grad(set_to_none=True)
    peak = torch.cuda.max_memory_allocated() / 1e9 if cuda else float("nan")
    return {"seconds": statistics.median(seconds[2:]), "peak_gb": peak, "loss": value}


@dataclass(frozen=True)
class Setting:
    """What is measured; see `cope bench objectives --help`."""

    turns: Sequence[int] = (5, 10, 20, 40)
    arms: Sequence[str] = ("stock", "packed", "unpacked")
    shape: str = "135m"
    batch: int = 8
    horizon: int = 3
    vary: float = 0.0
    repeats: int = 5
    checkpointing: bool = False
    device: str | None = None
    turn_tokens: int = TURN
    lora: int = 0

    def __post_init__(self) -> None:
        for name, given, known in (("shape", [self.shape], SHAPES), ("arm", self.arms, ARMS)):
            if unknown := set(given) - set(known):
                raise InputError(
                    f"there is no {name} '{unknown.pop()}'; there are {', '.join(known)}", type="bad_option"
                )


def run(setting: Setting, out: Path | None = None) -> list[dict[str, Any]]:
    """Measures all arms and prints one line each.

    Args:
        setting: What.
        out: File for all lines.
    """
    device = torch.device(setting.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    model = _model(setting, device)
    packed, unpacked = (Passes(model, device, 0, PassOptions(packed=on)) for on in (True, False))
    results: list[dict[str, Any]] = []
    for turns in setting.turns:
        samples = _samples(setting, turns)
        steps: dict[str, Callable[[], torch.Tensor]] = {
            "stock": lambda s=samples: stock_loss(model, s, device),
            "packed": lambda s=samples: joint_loss(packed.packed(model, s), s),
            "unpacked": lambda s=samples: unpacked_loss(unpacked, model, s),
        }
        base = float("nan")
        for arm in setting.arms:
            line = {"turns": turns, "arm": arm, **measure(steps[arm], model, device, setting.repeats)}
            base = line["seconds"] if arm == "stock" else base
            results.append(line | {"ratio": line["seconds"] / base})
            shown = {k: round(v, 5) if isinstance(v, float) else v for k, v in results[-1].items()}
            print(json.dumps(shown), flush=True)  # noqa: T201
    if out:
        out.write_text(json.dumps({"setting": asdict(setting), "results": results}))
    return results


def draw(results: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draws what `run` returned over the number of turns.

    Args:
        results: Lines of one or more runs.
        path: PNG file.
    """
    measures = {"seconds of an update": "seconds", "peak memory, GB": "peak_gb", "times stock": "ratio"}
    arms = dict.fromkeys(line["arm"] for line in results)

    def points(arm: str, measure: str) -> list[tuple[int, float]]:
        return sorted((line["turns"], line[measure]) for line in results if line["arm"] == arm)

    return learning_curves(
        [
            {"name": name, "lines": [{"run": arm, "points": points(arm, measure)} for arm in arms]}
            for name, measure in measures.items()
        ],
        path,
    )


def _model(setting: Setting, device: torch.device) -> Any:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = LlamaConfig(max_position_embeddings=65536, **SHAPES[setting.shape])
    with device:  # random numbers for billions of weights take minutes on a CPU
        model: Any = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    model.train()
    if setting.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if not setting.lora:
        return model
    adapter = LoraConfig(r=setting.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, adapter)


def _samples(setting: Setting, turns: int) -> list[Sample]:
    rng = random.Random(turns)
    lengths = [max(1, round(turns * (1 - setting.vary * rng.random()))) for _ in range(setting.batch)]
    vocabulary = SHAPES[setting.shape]["vocab_size"]
    return [make_sample(n, setting.horizon, vocabulary, rng, setting.turn_tokens) for n in lengths]
