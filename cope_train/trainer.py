"""GRPO over episodes, with the paper's objectives in the same optimizer step.

Three methods of `GRPOTrainer` are overridden: what a batch holds, the loss, and the training step. With every
objective off and no failed episode, each of them only calls its parent, so the result equals stock GRPO bit for bit.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOTrainer

from cope_gym.errors import InfrastructureError, InputError
from cope_gym.evaluate.panels import Panel
from cope_train.config import CoPEConfig
from cope_train.drift import DriftGuard
from cope_train.episodes import EpisodeSource, MakeEnv, record, reward_function
from cope_train.evaluation import evaluate_panel
from cope_train.generation import check_backend
from cope_train.groups import Reserve
from cope_train.idea_rewards import IDEA_REWARDS
from cope_train.metrics import rollout_metrics
from cope_train.model_card import CardMixin, Facts, adapter_of, named
from cope_train.objective_mixin import ObjectivesMixin
from cope_train.objective_terms import Objectives
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.records import Record
from cope_train.rollout.driver import Episode
from cope_train.rollout.template import ChatTemplate
from cope_train.run_folder import MetricsFile, trajectories_file, with_tokens, write_episodes
from cope_train.run_state import RunState
from cope_train.separate_step import SeparateStep
from cope_train.trl_adapter import (
    MEAN_OVER_ROWS,
    EpochSampler,
    check_contract,
    engine_options,
    evaluating,
    record_metric,
    use_merged_sync,
)

logger = logging.getLogger(__name__)


class CoPETrainer(ObjectivesMixin, CardMixin, GRPOTrainer):
    """`GRPOTrainer` whose rows are episodes.

    Args:
        model: Model, path or Hub id.
        args: The run.
        tasks: Task ids to train on.
        panel: Panel for evaluation during training, or several.
        make_env: Makes environments; by default those of the service.
        system_prompt: By default the environment's.
        processing_class: Tokenizer; by default the model's.
        **kwargs: Further arguments of `GRPOTrainer`, e.g. `peft_config`, `callbacks`.

    Examples:
        >>> args = CoPEConfig("runs/first", environment="sciworld", use_cpu=True, bf16=False)
        >>> CoPETrainer("HuggingFaceTB/SmolLM2-135M-Instruct", args, tasks=cope_gym.tasks("sciworld")).train()
    """

    _tag_names = ["trl", "grpo", "cope-gym"]

    def __init__(
        self,
        model: Any,
        args: CoPEConfig,
        tasks: list[str],
        panel: Panel | Sequence[Panel] | None = None,
        make_env: MakeEnv | None = None,
        system_prompt: str | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        check_contract()
        check_backend(args)
        check_batch(args, len(tasks))
        name = model if isinstance(model, str) else model.config.name_or_path
        self.base, self.started_from = name, ""
        self.panels = _panels(panel)
        ideas = [IDEA_REWARDS[idea](self.records) for idea in args.idea_rewards or []]
        evaluated = [task for one in self.panels for task in one.task_ids]
        with engine_options(args.vllm_engine_options):
            super().__init__(
                model=model,
                args=args,
                train_dataset=Dataset.from_dict({"prompt": list(tasks)}),
                eval_dataset=Dataset.from_dict({"prompt": evaluated}) if evaluated else None,
                reward_funcs=[reward_function(args.reward), *ideas],
                rollout_func=lambda prompts, trainer: self.source(prompts, trainer),
                processing_class=processing_class or AutoTokenizer.from_pretrained(name),
                **kwargs,
            )
        self.folder = Path(args.output_dir)
        template = ChatTemplate(self.processing_class, self.eos_token_ids, args.chat_template_kwargs)
        self.source = self._make_source(args, template, Path(name).name, make_env, system_prompt)
        for idea in ideas:
            idea.bind(self)
        if args.any_objective:
            self.objectives = Objectives(self, ChatPieces.probe(self.processing_class, args.chat_template_kwargs))
        if args.forecast and args.forecast_separate_step:
            self.add_callback(SeparateStep(self.objectives))
        self.add_callback(MetricsFile(self.folder))
        use_merged_sync(self)
        self.drift = DriftGuard(args.drift_limit)
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        self.source.reserve = Reserve(list(dict.fromkeys(tasks)), args.seed, rank, ranks)
        self.run_state = RunState(rank, self._state, self._restore)
        self.add_callback(self.run_state)
        self._rollout_seconds = 0.0
        self._training_seconds = 0.0
        self._written_step = -1

    def _make_source(self, *args: Any) -> EpisodeSource:
        return EpisodeSource(*args)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains; a run that goes on takes back what it remembered beside its weights."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if folder:
            self.run_state.load(Path(folder))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _state(self) -> dict[str, Any]:
        stopped = bool(self.objectives and self.objectives.stopped)
        return {"drift": self.drift.state(), "stopped": stopped, "reserve_taken": self.source.reserve.taken}

    def _restore(self, state: dict[str, Any]) -> None:
        self.drift.restore(state["drift"])
        self.source.reserve.taken = state["reserve_taken"]
        if self.objectives:
            self.objectives.stopped = state["stopped"]

    def _get_train_sampler(self, dataset: Any = None) -> EpochSampler:
        return EpochSampler.like(super()._get_train_sampler(dataset))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        episodes = self.source.episodes
        if (advantages := self.source.advantages()) is not None:
            batch["advantages"] = advantages.to(batch["advantages"])
        self._exclude_failed(batch, episodes)
        if self.objectives:
            batch["samples"] = self.objectives.samples(self.records())
        self._report(episodes, batch)
        return batch

    def records(self) -> list[Record]:
        """Returns this rank's episodes of the last rollout as the objectives see them."""
        episodes = self.source.episodes
        first = self.accelerator.process_index * len(episodes)
        return [record(e, str((first + i) // self.num_generations)) for i, e in enumerate(episodes)]

    def _exclude_failed(self, batch: dict[str, Any], episodes: list[Episode]) -> None:
        """Keeps failed rows out of means over rows; TRL's own masks keep them out of everything else."""
        local = torch.tensor([sum(e.failed for e in episodes), len(episodes)], device=self.accelerator.device)
        failed, rows = self.accelerator.gather(local).view(-1, 2).sum(0).tolist()
        record_metric(self, "episodes/failed", failed / rows)
        if failed / rows > self.args.max_failed_share or failed == rows:
            error = next((e.trajectory.error for e in episodes if e.trajectory.error), None) or {}
            raise InfrastructureError(
                f"{failed} of {rows} episodes failed (limit max_failed_share={self.args.max_failed_share}), last: "
                f"{error.get('detail', 'on another rank')} Mend the environment server, then resume from the last "
                "checkpoint",
                type="failed_share",
            )
        if failed and self.loss_type in MEAN_OVER_ROWS:
            batch["row_scale"] = torch.tensor(rows / (rows - failed), device=self.accelerator.device)

    def _report(self, episodes: list[Episode], batch: dict[str, Any]) -> None:
        self._rollout_seconds += self.source.clock.total
        no_action = rollout_metrics(self, episodes, self.source.clock, self.source.setup.action_format)
        self.source.report(self)
        if self.objectives and not self.objectives.stopped and not self.drift.passes(no_action):
            self.objectives.stopped = True
            logger.warning("turns without an action grew by %.3f: forecasting and ensemble are off", self.drift.drift)
        record_metric(self, "turns/no_action_drift", self.drift.drift)
        samples = batch.get("samples", [None] * len(episodes))
        advantages = batch["advantages"].float().cpu()
        shown = [
            with_tokens(episode, self.processing_class, _per_token(episode, row), sample)
            for episode, row, sample in zip(episodes, advantages, samples, strict=True)
        ]
        step = self.state.global_step
        path = trajectories_file(self.folder, step, self.accelerator.process_index)
        write_episodes(path, shown, append=self._written_step == step)
        self._written_step = step

    def card_facts(self) -> Facts:
        """Returns what the card beside the weights states."""
        args = self.args
        on = [name for name in ("forecast", "ensemble", "skills") if getattr(args, name)]
        extras = f" with {', '.join(on)}" if on else ""
        return Facts(
            name=self.folder.name,
            base=named(self.base),
            adapter=adapter_of(self.model),
            method=f"GRPO{extras} on whole episodes.",
            data=[
                f"**Tasks**: {len(self.train_dataset)} of {args.environment}, split {args.split or 'train'}, options "
                f"`{json.dumps(args.environment_options)}`, rewarded by {args.reward}.",
                *([f"**Started from** the adapter {self.started_from}."] if self.started_from else []),
            ],
            versions=self.source.versions,
            steps=self.state.global_step,
            folder=self.folder,
            options=args,
            tags=["trl", "grpo", args.environment],
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if "row_scale" not in inputs:
            return super()._compute_loss(model, inputs)
        # Advantages and beta carry the factor: every term of a row's loss is linear in one of them, and the entropy
        # bonus, a mean over tokens, has none.
        scale, beta = inputs["row_scale"].item(), self.beta
        self.beta = beta * scale
        try:
            return super()._compute_loss(model, {**inputs, "advantages": inputs["advantages"] * scale})
        finally:
            self.beta = beta

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Trains one micro-batch and tells update time from rollout time."""
        started = time.perf_counter()
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._training_seconds += time.perf_counter() - started
        if self.accelerator.sync_gradients:
            record_metric(self, "seconds/update", self._training_seconds - self._rollout_seconds)
            self._training_seconds = self._rollout_seconds = 0.0
        return loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Plays the panel, logs the result and writes it to `evaluations/`.

        Of several panels each has a folder and numbers of its own, e.g. `eval_alfworld_valid_seen_success`.
        """
        metrics: dict[str, float] = {}
        for panel in self.panels:
            name = f"_{panel.name.replace('/', '-')}" if len(self.panels) > 1 else ""
            out = self.folder / "evaluations" / f"step_{self.state.global_step:06d}{name}"
            numbers = evaluate_panel(self, self.source, panel, out)
            metrics |= {f"{metric_key_prefix}{name}_{measure}": value for measure, value in numbers.items()}
        with evaluating(self):
            self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def _panels(given: Panel | Sequence[Panel] | None) -> list[Panel]:
    panels = [given] if isinstance(given, Panel) else list(given or [])
    if len({panel.name for panel in panels}) < len(panels):
        raise InputError("two panels have the same name: their numbers could not be told apart", type="bad_option")
    return panels


def check_batch(args: CoPEConfig, tasks: int) -> None:
    """Compares the batch with the number of tasks.

    Raises:
        InputError: There are fewer tasks than one rollout takes, and TRL would end without a step.
    """
    groups = args.generation_batch_size // args.num_generations
    if tasks < groups:
        raise InputError(
            f"one rollout takes {groups} tasks (per_device_train_batch_size {args.per_device_train_batch_size} × "
            f"{args.world_size} processes × steps_per_generation {args.steps_per_generation} ÷ num_generations "
            f"{args.num_generations}), but there are {tasks}: take more tasks or a smaller batch",
            type="bad_option",
        )


def _per_token(episode: Episode, advantage: torch.Tensor) -> list[float]:
    length = episode.buffer.completion_length
    return (advantage.expand(length) if advantage.dim() == 0 else advantage[:length]).tolist()
