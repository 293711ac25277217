"""Options of the objectives, as a part of `CoPEConfig`. Every one is off by default: then stock GRPO is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cope_gym.errors import InputError
from cope_train.config_file import FOLDER
from cope_train.idea_rewards import IDEA_REWARDS
from cope_train.objective_passes import PassOptions
from cope_train.objectives.branches import BranchOptions
from cope_train.objectives.forecasting import ForecastOptions
from cope_train.objectives.temporal_ensemble import TemporalEnsembleOptions


def knob(default: Any, help: str) -> Any:
    """A dataclass field with a help text for the command line."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class ObjectiveConfig:
    """Knobs of forecasting, temporal ensemble, observation forecasting and of how they are computed."""

    # Forecasting loss
    forecast: bool = knob(False, "Add the action-forecasting loss.")
    forecast_coef: float = knob(0.01, "c_AF, its coefficient in the joint loss; at 0 it is only measured.")
    forecast_horizon: int = knob(3, "K, most actions to forecast, the current one included.")
    forecast_layout: str = knob(
        "policy", "`policy`: turns in the policy's own format; `turns`: bare; `list`: as CoPE."
    )
    forecast_targets: str = knob("all", "`all` actions, or tool `calls` only.")
    forecast_gate: str = knob("wins", "Which episodes are learnt from: `wins`, `all`, or `mixed` groups' wins.")
    forecast_weights: str = knob("equal_groups", "`equal_groups`, `cope` (1/m_g a sample), or `uniform`.")
    forecast_skip_invalid: bool = knob(True, "Pass over actions that were not executed, looking further ahead.")
    forecast_thought: bool = knob(False, "Keep the current turn's thought before slot 0 as context.")
    forecast_length_norm: bool = knob(False, "Weigh every action of a sample the same whatever its length.")
    forecast_max_samples_per_trajectory: int | None = knob(None, "Keep only the last so many samples of an episode.")
    forecast_require_action: bool = knob(False, "Drop wins without a tool call other than a hand-off.")
    forecast_skip_no_call: bool = knob(False, "Drop samples whose actions hold no tool call.")
    forecast_balance_calls: bool = knob(False, "Keep the share of tool calls among targets at the policy's own.")
    forecast_null_tasks: str | None = knob(
        None, "File with ids of tasks that a do-nothing agent solves, one a line; or `tau2`."
    )
    forecast_derange: bool = knob(False, "A control: learn the actions of other episodes, in the same amount.")
    forecast_separate_step: bool = knob(False, "An Adam step of its own, as CoPE published it, not one joint loss.")
    forecast_lr_scale: float = knob(1.0, "Learning-rate factor of that step.")

    # Temporal ensemble
    ensemble: bool = knob(False, "Add the temporal-ensemble loss.")
    ensemble_coef: float = knob(0.0, "λ_TE; at 0 it is only measured (dry run).")
    ensemble_eta: float = knob(0.5, "η, share of the earlier forecasts in the teacher, in [0, 1).")
    ensemble_top_m: int = knob(64, "M, most likely tokens kept of a forecast.")
    ensemble_warmup_steps: int = knob(0, "Optimizer steps before λ_TE counts.")

    # Observation forecasting
    observation_coef: float = knob(0.0, "c_OBS, coefficient of the cross-entropy on observations; 0 is off.")
    observation_cap: int | None = knob(None, "Learn only the first so many tokens of an observation.")

    # The ideas as rewards
    idea_rewards: list[str] | None = knob(
        None, "Rewards beside the task's own: `forecast_reward`, `ensemble_reward`; their weights in reward_weights."
    )

    # How they are computed
    pack_branches: bool = knob(True, "Run branches in one sequence with their trajectory, where the model can.")
    pack_max_length: int | None = knob(None, "Longest such sequence; longer ones run branch by branch.")
    branch_max_length: int = knob(8192, "Longest sequence of a branch run on its own; its middle is cut.")
    branch_batch_size: int = knob(8, "Branches run at once on their own.")
    gradient_share_steps: int = knob(20, "Log every term's gradient norm each so many steps; 0: never.")
    drift_limit: float | None = knob(
        None, "Switch forecasting and ensemble off once the share of turns without an action has grown by this much."
    )

    def check_objectives(self) -> None:
        """Checks the options.

        Raises:
            InputError: One of them makes no sense.
        """
        try:
            self.branch_options()
            self.ensemble_options()
            ForecastOptions(self.forecast_gate, self.forecast_weights)
        except ValueError as error:
            raise InputError(f"objective options: {error}", type="bad_option") from error
        if self.ensemble and self.forecast_layout != "policy":
            raise InputError(
                "the temporal ensemble compares policy turns: set forecast_layout to policy, or ensemble to false",
                type="bad_option",
            )
        if self.ensemble and self.forecast_derange:
            raise InputError(
                "forecast_derange is a control of forecasting alone: set ensemble to false", type="bad_option"
            )
        if unknown := set(self.idea_rewards or []) - set(IDEA_REWARDS):
            raise InputError(
                f"idea_rewards are {', '.join(IDEA_REWARDS)}, not {', '.join(sorted(unknown))}", type="bad_option"
            )
        if min(self.forecast_coef, self.observation_coef) < 0 or self.branch_batch_size < 1:
            raise InputError("coefficients must not be negative, branch_batch_size must be ≥ 1", type="bad_option")

    @property
    def any_objective(self) -> bool:
        """Whether anything beside GRPO is asked for."""
        return self.forecast or self.ensemble or self.observation_coef > 0

    def branch_options(self) -> BranchOptions:
        """How branches are built."""
        return BranchOptions(
            horizon=self.forecast_horizon,
            layout=self.forecast_layout,
            skip_invalid=self.forecast_skip_invalid,
            targets=self.forecast_targets,
            thought=self.forecast_thought,
            length_norm=self.forecast_length_norm,
            max_samples_per_trajectory=self.forecast_max_samples_per_trajectory,
        )

    def forecast_options(self) -> ForecastOptions:
        """Which episodes are learnt from, and how much each counts."""
        return ForecastOptions(
            gate=self.forecast_gate,
            weights=self.forecast_weights,
            require_action=self.forecast_require_action,
            skip_no_call=self.forecast_skip_no_call,
            null_tasks=_lines(self.forecast_null_tasks),
            balance_calls=self.forecast_balance_calls,
        )

    def ensemble_options(self) -> TemporalEnsembleOptions:
        """How the teacher is mixed."""
        return TemporalEnsembleOptions(
            weight=self.ensemble_coef,
            eta=self.ensemble_eta,
            top_m=self.ensemble_top_m,
            warmup_steps=self.ensemble_warmup_steps,
        )

    def pass_options(self, fp32_head: bool) -> PassOptions:
        """How branches are run."""
        return PassOptions(
            packed=self.pack_branches,
            packed_max_length=self.pack_max_length,
            max_length=self.branch_max_length,
            batch_size=self.branch_batch_size,
            fp32_head=fp32_head,
        )


def _lines(path: str | None) -> frozenset[str]:
    if path is None:
        return frozenset()
    if (shipped := FOLDER / path / "null_tasks.txt").is_file():
        path = str(shipped)
    if not Path(path).is_file():
        raise InputError(f"forecast_null_tasks names no file: {path}", type="bad_option")
    lines = map(str.strip, Path(path).read_text(encoding="utf-8").splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))
