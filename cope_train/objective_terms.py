"""The objectives inside a training run: samples of a rollout, counts of an optimizer step, and the joint loss.

L = L_GRPO + c_AF·L_AF + λ_TE·L_TE + c_OBS·L_OBS, one backward pass. Where branches are packed, the policy's log-probs
come from the same forward as theirs. With every coefficient at 0 (dry run, warm-up) the policy loss is TRL's own, bit
for bit, and the objectives are measured in a forward without gradient.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl import GRPOTrainer

from cope_gym.errors import InputError
from cope_train.early_backward import EarlyBackward
from cope_train.gradient_share import gradient_norms
from cope_train.meter import Meter
from cope_train.objective_passes import Alone, Hidden, Learn, Passes
from cope_train.objective_samples import SampleBuilder
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.forecasting import forecast_loss
from cope_train.objectives.observation import observation_loss
from cope_train.objectives.packing import captured
from cope_train.objectives.projection import Head, score
from cope_train.objectives.records import Record
from cope_train.objectives.rows import (
    CoverTokens,
    ForecastTokens,
    Sample,
    cover_tokens,
    forecast_tokens,
    observation_tokens,
    policy_tokens,
)
from cope_train.objectives.temporal_ensemble import (
    Forecast,
    mix_members,
    temporal_ensemble_kl,
    temporal_ensemble_loss,
)
from cope_train.trl_adapter import record_metric

logger = logging.getLogger(__name__)

Loss = Callable[[Any, dict[str, Any]], torch.Tensor]
Scores = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Counts:
    """Denominators of one optimizer step over all ranks, and forwards of one micro-batch.

    Attributes:
        forecast: Target tokens.
        covered: Covered positions.
        observed: Observation tokens.
        chunks: Forwards for branches that are run on their own; the most of any rank.
    """

    forecast: float
    covered: float
    observed: float
    chunks: int


@dataclass(frozen=True)
class Frozen:
    """What the weights θ̄ said of a micro-batch, kept because several updates use it.

    Attributes:
        log_probs: Of the policy's tokens, shape (B, C).
        forecast: q^F at covered positions.
        states: Hidden states of covered positions, shape (P, H).
        head: LM head of θ̄.
    """

    log_probs: torch.Tensor
    forecast: Forecast
    states: torch.Tensor
    head: Head


class Objectives:
    """Adds the objectives to a trainer's loss.

    Args:
        trainer: Trained with a `CoPEConfig`.
        chat: Template pieces of the policy's tokenizer.

    Attributes:
        policy_scores: Log-probs and entropies of the micro-batch's policy tokens, both of shape (B, C), while the
            policy loss is computed from the packed forward.
        stopped: Whether the drift guard has switched forecasting and ensemble off; they are still measured.
        window: Micro-batches of the current optimizer step, kept for a separate step.
    """

    def __init__(self, trainer: GRPOTrainer, chat: ChatPieces) -> None:
        args: Any = trainer.args
        self.trainer, self.args = trainer, args
        self.ensemble = args.ensemble_options()
        self.builder = SampleBuilder(args, chat)
        tokenizer: Any = trainer.processing_class
        lm = trainer.accelerator.unwrap_model(trainer.model)
        _refuse_dropout(lm)
        _refuse_straddling(args)
        self._measures = _measures_gradients(trainer)
        options = args.pass_options(args.cast_lm_head_to_fp32)
        self.passes = Passes(lm, trainer.accelerator.device, tokenizer.pad_token_id, options)
        self.meter = Meter(_metric_names(args))
        self.policy_scores: Scores | None = None
        self.stopped = False
        self.window: list[dict[str, Any]] = []
        self._settled = False
        self._shared_at = -1

    # What a rollout gives

    def samples(self, records: Sequence[Record]) -> list[Sample]:
        """Builds this rank's samples; gates and weights look at the episodes of all ranks (all ranks call this)."""
        if not self._settled:  # not earlier: now the model is in its parallel wrapper
            with self.trainer.accelerator.autocast():
                self.passes.settle(self.trainer.model_wrapped)
            self._settled = True
        samples = self.builder.build(records, self.trainer.accelerator.process_index)
        self._count_samples(samples)
        return samples

    def _count_samples(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            learnt = sum(sample.learnable) if sample.weight else 0
            self.meter.add("forecast/samples_per_episode", learnt)
            self.meter.add("forecast/learnt_share", learnt > 0)
            self.meter.add("packing/unpacked_share", not self.passes.fits(sample))
            tokens = sum(len(branch.ids) for branch in sample.branches)
            self.meter.add("packing/token_ratio", len(sample.record.ids) + tokens, len(sample.record.ids))
            for branch in sample.branches:
                self.meter.add("forecast/k_mean", len(branch.slots))

    def plan(self, micro_batches: list[dict[str, Any]], model: Any) -> None:
        """Adds counts to the micro-batches of a new generation batch, and what θ̄ says where several updates need it.

        All ranks call this once a generation batch.
        """
        accelerator = self.trainer.accelerator
        local = [[*self.builder.counts(b["samples"]), self.passes.chunks(b["samples"])] for b in micro_batches]
        ranks = accelerator.gather(torch.tensor([local], device=accelerator.device)).cpu().double()
        totals, chunks = ranks[..., :3].sum(0), ranks[..., 3].amax(0)
        size = min(self.args.gradient_accumulation_steps, len(micro_batches))
        stretch = self.args.gradient_accumulation_steps / size  # > 1 where a step spans several generations
        for i, batch in enumerate(micro_batches):
            window = totals[i // size * size : i // size * size + size].sum(0) * stretch
            batch["counts"] = Counts(*window.tolist(), int(chunks[i]))
        # Also without an ensemble: old log-probs must come from the same kind of forward as the current ones.
        if self._updates(len(micro_batches)) > 1 and self._joint and (self.args.ensemble or self.passes.packs):
            head = Head.of(self.passes.lm, self.args.cast_lm_head_to_fp32).frozen()
            for batch in micro_batches:
                batch["frozen"] = self._freeze(model, batch, head)

    def _updates(self, micro_batches: int) -> int:
        """Optimizer steps on one generation batch."""
        per_pass = max(micro_batches // self.args.gradient_accumulation_steps, 1)
        return per_pass * self.trainer.num_iterations

    @torch.no_grad()
    def _freeze(self, model: Any, batch: dict[str, Any], head: Head) -> Frozen:
        with self.trainer.compute_loss_context_manager():
            hidden = self._forward(model, batch, self._alone(batch)).whole()
            covers = cover_tokens(batch["samples"], hidden.places)
            source, _ = covers.tensors(hidden.states.device)
            log_probs, _ = self._policy(hidden, batch)
            return Frozen(log_probs, self._mix(hidden, covers), hidden.states[source], head)

    # The loss

    def loss(self, model: Any, inputs: dict[str, Any], stock: Loss) -> torch.Tensor:
        """Returns the joint loss of a micro-batch.

        Args:
            model: The wrapped model.
            inputs: TRL's micro-batch with `samples` and `counts`.
            stock: TRL's loss.
        """
        if self.args.forecast_separate_step:
            self.window.append(inputs)
        coefficients = self._coefficients()
        if not any(coefficients.values()):
            if self._watching:
                with torch.no_grad():
                    self._terms(self._forward(model, inputs, self._alone(inputs)), inputs)
            return self._close(stock(model, inputs))
        early = self._early(model) if coefficients["forecast"] else None
        alone = self._alone(inputs, early and early.learn(inputs, coefficients["forecast"]))
        if self.passes.packs:
            hidden = self.passes.packed(model, inputs["samples"], alone)
            self.policy_scores = self._policy(hidden, inputs)
            try:
                policy = stock(model, self._with_old(inputs))
            finally:
                self.policy_scores = None
        else:
            with captured(self.passes.lm) as states:
                policy = stock(model, inputs)
            hidden = self.passes.beside(states[-1], inputs["prompt_ids"].shape[1], inputs["samples"], alone)
        terms = self._terms(hidden, inputs)
        parts = {"policy": policy} | {name: c * terms[name] for name, c in coefficients.items() if c}
        self._share(model, parts, early)
        loss = torch.stack(list(parts.values())).sum()
        return self._close(loss + early.value if early else loss)

    def _coefficients(self) -> dict[str, float]:
        args, step = self.args, self.trainer.state.global_step
        joint = args.forecast and not args.forecast_separate_step and not self.stopped
        return {
            "forecast": args.forecast_coef if joint else 0.0,
            "ensemble": self.ensemble.effective(step) if args.ensemble and not self.stopped else 0.0,
            "observation": args.observation_coef,
        }

    @property
    def _joint(self) -> bool:
        """Whether any term ever joins the policy's loss, now or after a warm-up."""
        args = self.args
        forecast = args.forecast and args.forecast_coef and not args.forecast_separate_step
        return bool(forecast or (args.ensemble and args.ensemble_coef) or args.observation_coef)

    @property
    def _watching(self) -> bool:
        """Whether a dry run has anything to measure; a separate step measures itself."""
        return self.args.ensemble or (self.args.forecast and not self.args.forecast_separate_step)

    def _alone(self, inputs: dict[str, Any], learn: Learn | None = None) -> Alone:
        """Runs the branches that are not packed; takes back what they teach as it goes, where `learn` says how."""
        sharded = self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled
        joint = learn is not None and sharded
        return self.passes.run_alone(inputs["samples"], inputs["counts"].chunks, None if joint else learn, joint)

    def _early(self, model: Any) -> EarlyBackward:
        return EarlyBackward(self._forecast, self.trainer.accelerator, model, self.measuring)

    def _forward(self, model: Any, inputs: dict[str, Any], alone: Alone) -> Hidden:
        """A forward of the trajectories on its own, apart from the policy's."""
        run = self.passes.packed if self.passes.packs else self.passes.separate
        return run(model, inputs["samples"], alone)

    def _with_old(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Old log-probs from the packed forward, too; without them TRL takes the current ones, which is exact here."""
        rest = {name: value for name, value in inputs.items() if name != "old_per_token_logps"}
        return rest | {"old_per_token_logps": inputs["frozen"].log_probs} if "frozen" in inputs else rest

    def _policy(self, hidden: Hidden, inputs: dict[str, Any]) -> Scores:
        """Log-probs and entropies at TRL's places; 0 where the policy sampled nothing."""
        tokens, cells = policy_tokens(inputs["samples"], hidden.places)
        source, target = tokens.tensors(hidden.states.device)
        scores = score(hidden.states[source], target, hidden.head, self.trainer.temperature)
        rows, columns = torch.tensor(cells, device=hidden.states.device).long().view(-1, 2).unbind(1)
        blank = scores.log_probs.new_zeros(inputs["completion_ids"].shape)
        return tuple(blank.index_put((rows, columns), v) for v in (scores.log_probs, scores.entropy))  # pyright: ignore

    def _terms(self, hidden: Hidden, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        terms: dict[str, torch.Tensor] = {}
        whole = hidden.whole()
        if self.args.forecast and not self.args.forecast_separate_step:
            learnt = hidden.alone is not None and hidden.alone.learnt
            terms["forecast"] = self._forecast(hidden if learnt else whole, inputs)
        if self.args.ensemble:
            terms["ensemble"] = self._ensemble(whole, inputs)
        if self.args.observation_coef:
            terms["observation"] = self._observation(hidden, inputs)
        return terms

    def forecast_alone(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """c_AF·L_AF of a micro-batch by a forward of its own, without what is taken back at once."""
        early, coefficient = self._early(model), self.args.forecast_coef
        alone = self._alone(inputs, early.learn(inputs, coefficient))
        hidden = self._forward(model, inputs, alone)
        return coefficient * self._forecast(hidden if alone.learnt else hidden.whole(), inputs)

    def _forecast(self, hidden: Hidden, inputs: dict[str, Any]) -> torch.Tensor:
        learnt, watched = forecast_tokens(inputs["samples"], hidden.places)
        device, world = hidden.states.device, self.trainer.accelerator.num_processes
        source, target = learnt.tensors(device)
        scores = score(hidden.states[source], target, hidden.head)
        weight = torch.tensor(learnt.weight, device=device)
        self.meter.add("forecast/loss", -(scores.log_probs * weight).sum(), len(learnt))
        self._exact_matches(learnt, scores.top1)
        if len(watched):
            source, target = watched.tensors(device)
            with torch.no_grad():
                self._exact_matches(watched, score(hidden.states[source], target, hidden.head).top1)
        return forecast_loss(scores.log_probs, weight, inputs["counts"].forecast, world)

    def _exact_matches(self, tokens: ForecastTokens, top1: torch.Tensor) -> None:
        """Share of slots whose every action token is the most likely one, by age."""
        slot = torch.tensor(tokens.slot, device=top1.device).long()
        wrong = torch.zeros(len(tokens.ages), device=top1.device)
        inside = slot >= 0
        wrong.index_add_(0, slot[inside], (~top1[inside]).float())
        ages = torch.tensor(tokens.ages, device=top1.device)
        for age in range(self.args.forecast_horizon):
            of_age = ages == age
            self.meter.add(f"forecast/exact_age{age}", (wrong[of_age] == 0).sum(), tokens.ages.count(age))

    def _mix(self, hidden: Hidden, covers: CoverTokens) -> Forecast:
        device = hidden.states.device
        member, owner = covers.member_tensors(device)
        _, target = covers.tensors(device)
        temperature = self.trainer.temperature
        return mix_members(hidden.states[member], owner, target, hidden.head, temperature, self.ensemble.top_m)

    def _ensemble(self, hidden: Hidden, inputs: dict[str, Any]) -> torch.Tensor:
        covers = cover_tokens(inputs["samples"], hidden.places)
        source, target = covers.tensors(hidden.states.device)
        frozen: Frozen | None = inputs.get("frozen")
        forecast = frozen.forecast if frozen else self._mix(hidden, covers)
        kl, log_pi = temporal_ensemble_kl(
            hidden.states[source],
            hidden.head,
            target,
            forecast,
            self.ensemble.eta,
            self.trainer.temperature,
            (frozen.states, frozen.head) if frozen else None,
        )
        self._count_covers(covers, forecast, kl, log_pi)
        return temporal_ensemble_loss(kl, inputs["counts"].covered, self.trainer.accelerator.num_processes)

    def _count_covers(self, covers: CoverTokens, forecast: Forecast, kl: torch.Tensor, log_pi: torch.Tensor) -> None:
        won = torch.tensor(covers.won, device=kl.device, dtype=torch.bool)
        gain = (forecast.realised - log_pi).clamp(-50, 50)
        wins = sum(covers.won)
        for name, total, count in (
            ("kl", kl.sum(), len(covers)),
            ("covered_share", len(covers), covers.actions),
            ("mismatched_share", covers.mismatched, covers.mismatched + covers.members),
            ("members_mean", covers.members, covers.turns),
            ("mass", forecast.probs.sum(), len(covers)),
            ("gain", gain.sum(), len(covers)),
            ("gain_win", gain[won].sum(), wins),
            ("gain_loss", gain[~won].sum(), len(covers) - wins),
        ):
            self.meter.add(f"ensemble/{name}", total, count)

    def _observation(self, hidden: Hidden, inputs: dict[str, Any]) -> torch.Tensor:
        tokens = observation_tokens(inputs["samples"], hidden.places, self.args.observation_cap)
        source, target = tokens.tensors(hidden.states.device)
        scores = score(hidden.states[source], target, hidden.head)
        self.meter.add("observation/loss", -scores.log_probs.sum(), len(tokens))
        return observation_loss(scores.log_probs, inputs["counts"].observed, self.trainer.accelerator.num_processes)

    # What is logged

    @property
    def measuring(self) -> bool:
        """Whether gradient norms are due: every so many steps, in the first micro-batch of the step."""
        every, step = self.args.gradient_share_steps, self.trainer.state.global_step
        return self._measures and step % every == 0 and self._shared_at != step

    def _share(self, model: Any, parts: dict[str, torch.Tensor], early: EarlyBackward | None) -> None:
        """Logs how much every term pulls."""
        if not self.measuring or len(parts) == 1:
            return
        self._shared_at = self.trainer.state.global_step
        norms = gradient_norms(parts, model, {"forecast": early.gradients} if early else {})
        total = sum(norms.values()) or 1.0
        for name, norm in norms.items():
            self.meter.add(f"gradient_share/{name}", norm / total)
            self.meter.add(f"gradient_norm/{name}", norm)

    def _close(self, loss: torch.Tensor) -> torch.Tensor:
        if self.trainer.accelerator.sync_gradients:
            self.flush()
        return loss

    def flush(self) -> None:
        """Logs what all ranks have added up since the last time (all ranks call this)."""
        accelerator = self.trainer.accelerator
        taken = self.meter.take(accelerator.device, lambda sums: accelerator.reduce(sums, reduction="sum"))
        for name, value in taken.items():
            record_metric(self.trainer, name, value)


def _refuse_dropout(model: Any) -> None:
    """Teacher and student, trajectory and branch must be the same function of their tokens."""
    for name, module in model.named_modules():
        if "lora_dropout" in name and getattr(module, "p", 0.0) > 0:
            raise InputError("set lora_dropout to 0: the objectives compare several forwards", type="bad_option")


def _measures_gradients(trainer: Any) -> bool:
    """Whether terms can have backward passes of their own; DeepSpeed takes each for one of a step."""
    args, deepspeed = trainer.args, trainer.is_deepspeed_enabled
    if deepspeed and args.forecast and args.forecast_separate_step:
        raise InputError(
            "forecast_separate_step is not possible with DeepSpeed, which makes its optimizer's step inside of the "
            "backward pass: take --accelerate fsdp2 or ddp, or leave forecast_separate_step out",
            type="bad_option",
        )
    if deepspeed and args.gradient_share_steps:
        logger.warning("gradient shares are not measured: DeepSpeed takes every backward pass for one of a step")
    return bool(args.gradient_share_steps) and not deepspeed


def _refuse_straddling(args: Any) -> None:
    """An optimizer step takes whole generation batches, or a whole part of one: only then its counts are known."""
    steps, accumulated = args.steps_per_generation, args.gradient_accumulation_steps
    if steps % accumulated and accumulated % steps:
        raise InputError(
            f"gradient_accumulation_steps={accumulated} and steps_per_generation={steps}: one must be a multiple of "
            "the other",
            type="bad_option",
        )


def _metric_names(args: Any) -> tuple[str, ...]:
    ensemble = ("kl", "covered_share", "mismatched_share", "members_mean", "mass", "gain", "gain_win", "gain_loss")
    terms = ("policy", "forecast", "ensemble", "observation")
    return (
        "forecast/samples_per_episode",
        "forecast/learnt_share",
        "forecast/k_mean",
        "forecast/loss",
        *(f"forecast/exact_age{age}" for age in range(args.forecast_horizon)),
        *(f"ensemble/{name}" for name in ensemble),
        "observation/loss",
        "packing/token_ratio",
        "packing/unpacked_share",
        *(f"gradient_share/{name}" for name in terms),
        *(f"gradient_norm/{name}" for name in terms),
    )
