"""The card that is saved beside a model: what it was trained from, on and with, its results, what they leave open.

Only what the run's own files and options say; nothing is claimed that was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, Field, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from accelerate.utils import is_peft_model

import cope_gym
from cope_train.weights import whole_weights

_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")
# Where and how a run was started says nothing of its model, and addresses and tokens are nobody's business.
_PRIVATE = (
    "output_dir", "run_name", "logging_dir", "project", "base_url", "hub_token", "hub_model_id", "push_to_hub_token",
    "trackio_space_id", "trackio_bucket_id", "resume_from_checkpoint", "model_init_kwargs", "accelerator_config",
    "deepspeed", "fsdp_config", "vllm_server_base_url", "vllm_server_host", "server_settings", "report_to",
    "local_rank",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What a trainer knows of its run.

    Attributes:
        name: Of the model.
        base: Model that training started from.
        adapter: What the LoRA adapter of it is like, "" for all weights.
        method: One sentence.
        data: Sentences on what was learnt from.
        versions: Versions, data digest and flags of the environment.
        steps: Optimizer steps so far.
        folder: Folder of the run, for its evaluations.
        options: The run's options.
        limits: Sentences that hold for this kind of training.
        tags: For the Hub.
    """

    name: str
    base: str
    adapter: str
    method: str
    data: Sequence[str]
    versions: Mapping[str, Any]
    steps: int
    folder: Path
    options: Any
    limits: Sequence[str] = ()
    tags: Sequence[str] = field(default_factory=tuple)


class CardMixin:
    """Has a `Trainer` write this card wherever it saves weights, in place of TRL's draft."""

    def card_facts(self) -> Facts:
        """Returns what the card states."""
        raise NotImplementedError

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """TRL calls this at checkpoints."""
        self._write_card(Path(self.args.output_dir))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the weights, and the card beside them."""
        with nullcontext() if _internal_call else whole_weights(self):
            super().save_model(output_dir, _internal_call)
        self._write_card(Path(output_dir or self.args.output_dir))

    def _write_card(self, folder: Path) -> None:
        if self.is_world_process_zero():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "README.md").write_text(render(self.card_facts()), encoding="utf-8")


def adapter_of(model: Any) -> str:
    """Returns what a model's LoRA adapter is like, "" for a model without one."""
    if not is_peft_model(model):
        return ""
    config = model.peft_config["default"]
    return f"a LoRA adapter of it (rank {getattr(config, 'r', '?')}, alpha {getattr(config, 'lora_alpha', '?')})"


def named(model: str) -> str:
    """Returns a model's name without the path of the machine it lay on."""
    return Path(model).name if Path(model).is_dir() else model


def render(facts: Facts) -> str:
    """Returns the card's text."""
    evaluated = _evaluations(facts.folder)
    weights = facts.adapter or "all weights"
    sections = [
        _head(facts),
        f"# {facts.name}\n",
        f"{facts.method} Written by [CoPE Gym](https://pypi.org/project/cope-gym/) {cope_gym.__version__} at step "
        f"{facts.steps}.\n",
        f"* **Base model**: {facts.base}; trained: {weights}. Its licence covers this model too.",
        *(f"* {sentence}" for sentence in facts.data),
        f"* **Software**: {', '.join(f'{package} {version(package)}' for package in _PACKAGES)}\n",
        "## Environment\n",
        _versions(facts.versions),
        "## Results\n",
        _results(evaluated),
        "## Options\n",
        "Those that differ from the defaults.\n",
        f"```yaml\n{yaml.safe_dump(changed(facts.options), sort_keys=True, allow_unicode=True)}```\n",
        "## Limits\n",
        "\n".join(f"* {sentence}" for sentence in [*facts.limits, *_limits(evaluated, facts)]) + "\n",
    ]
    return "\n".join(sections)


def changed(options: Any) -> dict[str, Any]:
    """Returns the options of a run that differ from their defaults and say something of its model."""
    found: dict[str, Any] = {}
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name.endswith("_token") or one.name in _PRIVATE or value in (None, _default(one)):
            continue
        if isinstance(value, str) and Path(value).is_absolute():
            value = Path(value).name
        plain = json.loads(json.dumps(value, default=str))
        if plain not in ({}, [], ""):
            found[one.name] = plain
    return found


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _evaluations(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Results of a run's evaluations with at least one usable episode, in the order of their steps."""
    found = sorted((folder / "evaluations").glob("*/result.json"))
    read = [(path.parent.name.replace("_", " "), json.loads(path.read_text(encoding="utf-8"))) for path in found]
    return [(label, result) for label, result in read if result["metrics"]]


def _head(facts: Facts) -> str:
    head: dict[str, Any] = {
        "library_name": "peft" if facts.adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["cope-gym", "agent", *facts.tags],
    }
    if "/" in facts.base:  # a Hub id: the Hub links it
        head["base_model"] = facts.base
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n"


def _versions(versions: Mapping[str, Any]) -> str:
    if not versions:
        return "Versions were not recorded: the episodes did not come from an environment service.\n"
    return "\n".join(f"* {key}: `{json.dumps(value, ensure_ascii=False)}`" for key, value in versions.items()) + "\n"


def _results(evaluated: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    rows = [
        f"| {label} | {result['panel']['name']} | {result['tasks_played']} | {result['samples']} | "
        f"{_interval(result, 'success')} | {_interval(result, 'score')} |"
        for label, result in evaluated
    ]
    if not rows:
        return "This run evaluated nothing.\n"
    head = "| evaluation | panel | tasks | episodes a task | success | score |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n\nIn brackets: 95 % intervals, clustered by task.\n"


def _interval(result: Mapping[str, Any], measure: str) -> str:
    estimate = result["metrics"][measure]
    if estimate["low"] is None:
        return f"{estimate['value']:.3f}"
    return f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def _limits(evaluated: Sequence[tuple[str, Mapping[str, Any]]], facts: Facts) -> list[str]:
    sentences = [f"One run with one seed ({facts.options.seed}): differences to other runs include chance."]
    results = [result for _, result in evaluated]
    if not results:
        sentences.append("Nothing is known of how well it plays.")
    elif (fewest := min(result["tasks_played"] for result in results)) < 100:
        sentences.append(f"The smallest panel has {fewest} tasks; with so few the intervals are wide.")
    split = getattr(facts.options, "split", None)
    if any(result["panel"]["split"] == split for result in results):
        sentences.append("It was evaluated on tasks of the split that it was trained on.")
    if len(results) > 1:
        sentences.append("If a checkpoint was chosen by these evaluations, its number is too good.")
    flags = facts.versions.get("engine_flags", {})
    if flags.get("data") == "self-made":
        sentences.append("Trained on the self-made world: its scores are no AppWorld scores.")
    if flags.get("user") == "scripted":
        sentences.append("The customer was scripted: its scores are no τ² scores.")
    if str(flags.get("catalogue", {}).get("name", "")).startswith("synthetic"):
        sentences.append("The shop's catalogue was generated: its scores are no published WebShop scores.")
    sentences.append("It was trained to act in the environment above and has not been tested for anything else.")
    return sentences
