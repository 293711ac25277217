"""The main job, small: a real language model learns a real task on two CPU cores, in minutes.

    python -m cope_train.quickstart --run quickstart

ScienceWorld is installed and started; SmolLM2-135M is evaluated, clones a few gold paths, trains some GRPO steps with
LoRA, forecasting and the temporal ensemble through real episodes, and is evaluated again. The report shows all of it.
With six evaluation tasks the intervals are wide: this shows that everything works, not how well the method does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

import datasets
import torch
import transformers
import typer
from peft import LoraConfig
from rich.console import Console
from transformers import AutoTokenizer
from trl import SFTConfig

from cope_gym import CopeError, trajectory
from cope_gym.cli.common import complain
from cope_gym.evaluate import panels
from cope_gym.evaluate.episode import Rules
from cope_gym.evaluate.panels import Panel
from cope_gym.evaluate.policies import Policy, PolicySpec
from cope_gym.evaluate.policies import make as make_policy
from cope_gym.evaluate.report import report
from cope_gym.evaluate.runner import Evaluation, evaluate
from cope_gym.evaluate.service import Service
from cope_gym.server import connect
from cope_train.config import CoPEConfig
from cope_train.models import fast_dtype, quickstart_model
from cope_train.policies import LocalModel
from cope_train.progress import StepBar, TimeLimit, bar, quiet
from cope_train.rollout.backends import Sampling
from cope_train.run_folder import read_metrics
from cope_train.sft import clone
from cope_train.trainer import CoPETrainer

ENV, CATEGORY, OPTIONS = "sciworld", "find-non-living-thing", {"simplifications": "easy"}
SYSTEM = (
    "You play a text science lab. Reply with exactly one line: Action: <command>. Commands: look around, open X, "
    "go to X, teleport to X, pick up X, move X to Y, focus on X, inventory, wait."
)
# Gold paths here have at most 9 actions, of at most 10 tokens: what is above costs a model that rambles only time.
TURNS, TURN_TOKENS, FIRST_CHARS, LATER_CHARS = 10, 14, 800, 200
CLONING_SECONDS, GRPO_SECONDS = 220, 180  # a slow machine does less in place of taking longer

console = Console(highlight=False)


@dataclass
class Quickstart:
    """What the phases share.

    Attributes:
        folder: The run's folder.
        service: ScienceWorld.
        panel: Evaluation tasks.
        tasks: Training tasks.
        patience: Factor of the time limits.
    """

    folder: Path
    service: Service
    panel: Panel
    tasks: list[str]
    patience: float = 1.0

    @property
    def rules(self) -> Rules:
        """How episodes are played, in every phase alike."""
        return Rules(ENV, "react", TURNS, SYSTEM, FIRST_CHARS, LATER_CHARS)


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Prints a phase and how long it took."""
    console.print(f"[bold]{title}[/bold]")
    started = time.perf_counter()
    yield
    console.print(f"  [dim]{time.perf_counter() - started:.0f} s[/dim]")


def prepare_environment() -> Service:
    """Installs ScienceWorld (a second time this is nothing) and starts its server."""
    subprocess.run([sys.executable, "-m", "cope_gym", "install", ENV], check=True)
    service = Service(ENV, connect(ENV))
    versions = service.versions()
    console.print(f"  server is up: ScienceWorld {versions['versions'].get('scienceworld', '')}")
    return service


def play_panel(start: Quickstart, policy: Policy, panel: Panel, out: Path, concurrency: int) -> dict[str, Any]:
    """Plays every task of a panel once and writes the result."""
    evaluation = Evaluation(panel, start.rules, versions=start.service.versions(), concurrency=concurrency)
    with bar(console) as progress:
        task = progress.add_task(policy.name, total=len(panel.task_ids), note="")
        result = evaluate(
            evaluation,
            policy,
            lambda: start.service.make_env(TURNS),
            out,
            lambda _, done, __: progress.update(task, completed=done),
        )
    return result


def evaluate_model(start: Quickstart, model: Path, name: str, step: int) -> dict[str, Any]:
    """Evaluates a model or an adapter on the panel, all tasks in one batch."""
    policy = LocalModel(str(model), Sampling(1.0), TURN_TOKENS, batch_size=len(start.panel.task_ids))
    policy.name, policy.settings = name, {**policy.settings, "step": step}
    result = play_panel(start, policy, start.panel, start.folder / "evaluations" / name.replace(" ", "_"), 8)
    success, score = (result["metrics"][measure] for measure in ("success", "score"))
    console.print(f"  success {_shown(success)}   score {_shown(score)}")
    return result


def _shown(metric: Mapping[str, Any]) -> str:
    """A value with its interval; one task has none."""
    value = f"{metric['value']:.2f}"
    return value if metric["low"] is None else f"{value} [{metric['low']:.2f}, {metric['high']:.2f}]"


def collect_gold(start: Quickstart, count: int) -> list[trajectory.Trajectory]:
    """Plays the benchmark's own solutions of training tasks."""
    panel = Panel(ENV, "experts", "train", tuple(start.tasks[:count]), OPTIONS).sealed()
    policy = make_policy("gold", PolicySpec("", ENV, start.service.gold))
    out = start.folder / "experts"
    play_panel(start, policy, panel, out, concurrency=4)
    return [e for e in trajectory.read(out / "trajectories.jsonl") if e.success and e.error is None]


def clone_experts(start: Quickstart, experts: list[trajectory.Trajectory], model: Path, epochs: float) -> Path:
    """Clones gold paths into a LoRA adapter, merges it and saves the model that GRPO starts from."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    args = SFTConfig(
        output_dir=str(start.folder / "cloning"),
        num_train_epochs=epochs,
        per_device_train_batch_size=2,
        learning_rate=5e-4,
        max_length=None,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        model_init_kwargs={"dtype": fast_dtype()},
    )
    with bar(console) as progress:
        steps = StepBar(progress, f"{len(experts)} gold paths", {"loss": "loss"})
        limit = TimeLimit(CLONING_SECONDS * start.patience, tell=console.print)
        trainer = clone(str(model), tokenizer, experts, args, lora(), [steps, limit], quiet)
    folder = start.folder / "warm_start"
    trainer.model.merge_and_unload().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train(start: Quickstart, model: Path, steps: int) -> tuple[Path, bool, int]:
    """Trains GRPO steps with the forecasting and temporal-ensemble losses.

    Returns:
        The folder of the adapter, whether training changed it, and after how many steps.
    """
    args = CoPEConfig(
        output_dir=str(start.folder),
        environment=ENV,
        environment_options=dict(OPTIONS),
        action_format="react",
        reward="score",
        max_turns=TURNS,
        max_turn_tokens=TURN_TOKENS,
        max_episode_tokens=1536,
        first_observation_chars=FIRST_CHARS,
        observation_chars=LATER_CHARS,
        per_device_train_batch_size=1,  # attention weights of a longer batch would fill a small machine's memory
        gradient_accumulation_steps=8,
        num_generations=4,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        max_steps=steps,
        forecast=True,
        forecast_coef=0.1,
        forecast_max_samples_per_trajectory=4,
        ensemble=True,
        ensemble_coef=0.05,
        gradient_share_steps=0,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        model_init_kwargs={"dtype": fast_dtype()},
    )
    shown = {"reward": "score", "episodes/success": "success", "forecast/loss": "forecast loss"}
    with bar(console) as progress:
        trainer = CoPETrainer(
            str(model),
            args,
            start.tasks,
            system_prompt=SYSTEM,
            peft_config=lora(),
            callbacks=[
                StepBar(progress, "GRPO + forecasts", shown),
                TimeLimit(GRPO_SECONDS * start.patience, steps=2, tell=console.print),
            ],
        )
        quiet(trainer)
        played = progress.add_task("episodes", total=8, note="")
        _count_episodes(trainer, progress, played)
        before = adapter(trainer.model)
        trainer.train()
    trainer.save_model(str(start.folder / "adapter"))
    return start.folder / "adapter", not torch.equal(before, adapter(trainer.model)), trainer.state.global_step


def _count_episodes(trainer: CoPETrainer, progress: Any, task: Any) -> None:
    def over(_: Any) -> None:
        state = progress.tasks[task]
        progress.update(task, completed=state.completed % state.total + 1)

    trainer.source.progress = over


def lora() -> LoraConfig:
    """The adapter of both cloning and GRPO."""
    return LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def adapter(model: Any) -> torch.Tensor:
    """Returns all adapter weights in one vector."""
    return torch.cat([p.detach().flatten().float() for n, p in model.named_parameters() if "lora_" in n])


def check(folder: Path, changed: bool) -> list[str]:
    """Says what a run that works would have shown and this one did not."""
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "loss" in row]
    tests = {
        "no group had rewards that differ": any(row["frac_reward_zero_std"] < 1 for row in rows),
        "no forecast sample was built": any((row.get("forecast/samples_per_episode") or 0) > 0 for row in rows),
        "no position was covered by the temporal ensemble": any(
            (row.get("ensemble/covered_share") or 0) > 0 for row in rows
        ),
        "no step had a gradient": any((row["grad_norm"] or 0) > 0 for row in rows),
        "the adapter did not change": changed,
    }
    return [sentence for sentence, passed in tests.items() if not passed]


def main(
    run: Annotated[str, typer.Option(help="Name of the run; its folder is runs/NAME.")] = "quickstart",
    steps: Annotated[int, typer.Option(min=1, help="GRPO steps.")] = 3,
    experts: Annotated[int, typer.Option(min=1, help="Gold paths to clone.")] = 24,
    epochs: Annotated[float, typer.Option(min=0.1, help="Times each is cloned.")] = 3.0,
    tasks: Annotated[int, typer.Option(min=1, max=8, help="Evaluation tasks.")] = 6,
    patience: Annotated[
        float, typer.Option(min=0.1, help="Factor of the time limits, for slow or busy machines.")
    ] = 1.0,
) -> None:
    """Runs all phases."""
    started = time.perf_counter()
    for module in (transformers, datasets):
        module.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=UserWarning)
    folder = Path("runs") / run
    for old in ("evaluations", "experts", "trajectories", "adapter", "warm_start"):
        shutil.rmtree(folder / old, ignore_errors=True)
    with phase("1/7  ScienceWorld: install and start"):
        service = prepare_environment()
        train_tasks = [t.id for t in service.client.tasks(ENV, "train") if t.category == CATEGORY]
        start = Quickstart(folder, service, panels.load("sciworld_quickstart").head(tasks), train_tasks, patience)
    with phase("2/7  SmolLM2-135M-Instruct: prepare"):
        model = quickstart_model()
    with phase(f"3/7  Evaluate before training, {len(start.panel.task_ids)} tasks"):
        evaluate_model(start, model, "before", 0)
    with phase(f"4/7  Collect {experts} gold paths"):
        gold = collect_gold(start, experts)
    with phase(f"5/7  Clone them, {epochs:g} epochs with LoRA"):
        warm = clone_experts(start, gold, model, epochs)
    with phase(f"6/7  {steps} GRPO steps of 8 episodes with LoRA, forecasting and temporal ensemble"):
        trained, changed, made = train(start, warm, steps)
    with phase("7/7  Evaluate after training"):
        evaluate_model(start, trained, "after", made)
    page = report(folder, "Quickstart: ScienceWorld, SmolLM2-135M, GRPO with forecasting and temporal ensemble")
    if problems := check(folder, changed):
        complain("The quickstart ran, but " + "; ".join(problems) + ".")
        raise SystemExit(1)
    console.print(
        f"\nDone in {(time.perf_counter() - started) / 60:.1f} minutes. Open [bold]{page}[/bold] in a browser.\n"
        "Next: cope play sciworld   ·   cope train cope_train/configs/sciworld/quick.yaml   ·   docs/"
    )


if __name__ == "__main__":
    try:
        typer.run(main)
    except CopeError as error:
        complain(str(error))
        sys.exit(2)
