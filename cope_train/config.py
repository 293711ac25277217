"""All options of a training run, as one dataclass on top of TRL's `GRPOConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trl import GRPOConfig

from cope_gym.errors import InputError
from cope_train.objectives.branches import BranchOptions
from cope_train.objectives.forecasting import ForecastOptions
from cope_train.rollout.backends import Sampling
from cope_train.rollout.driver import Limits

REWARDS = ("success", "score")


def _knob(default: Any, help: str) -> Any:
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class CoPEConfig(GRPOConfig):
    """`GRPOConfig` and what episodes, objectives and evaluation need. With every objective off it trains stock GRPO.

    `output_dir` is the run's folder: checkpoints, `metrics.jsonl`, `trajectories/`, `evaluations/`.
    `max_completion_length` is set to `max_episode_tokens` unless given.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "environment_options"]

    # Environment
    environment: str = _knob("sciworld", "Short environment name.")
    split: str | None = _knob(None, "Split to train on; the benchmark's first (training) split by default.")
    environment_options: dict[str, Any] | str = _knob({}, "Options of the benchmark, e.g. {simplifications: easy}.")
    task_categories: list[str] | None = _knob(None, "Train on tasks of these categories only.")
    max_tasks: int | None = _knob(None, "Train on the first so many tasks of each category.")
    base_url: str | None = _knob(None, "Environment server(s), comma-separated; a local one is started by default.")
    system_prompt: str | None = _knob(None, "File with the system prompt; the environment's own by default.")
    action_format: str | None = _knob(None, "How actions are written; the benchmark's published format by default.")

    # Episodes
    reward: str = _knob("success", "What GRPO maximises: `success` (0 or 1) or `score` (in [0, 1]).")
    max_turns: int = _knob(20, "Most action turns of an episode.")
    max_turn_tokens: int = _knob(64, "Most sampled tokens of a turn.")
    max_episode_tokens: int = _knob(4096, "Most tokens after the prompt, observations included.")
    first_observation_chars: int = _knob(4000, "Where the first observation is cut.")
    observation_chars: int = _knob(2000, "Where later observations are cut.")
    episode_attempts: int = _knob(2, "How often an episode is tried when the service fails.")
    max_failed_share: float = _knob(0.5, "A rollout in which a larger share of episodes failed ends the run.")
    environment_threads: int = _knob(64, "Most environment calls at the same time.")
    gather_seconds: float = _knob(0.1, "How long the Transformers sampler waits for more episodes to become ready.")
    ordered_rollouts: bool = _knob(False, "Batches that do not depend on timing: slower, repeatable to the bit.")

    # Forecasting (objectives.md §2)
    forecast: bool = _knob(False, "Add the action-forecasting loss.")
    forecast_coef: float = _knob(0.01, "c_AF, its coefficient in the joint loss.")
    forecast_horizon: int = _knob(3, "K, most actions to forecast, the current one included.")
    forecast_layout: str = _knob(
        "policy", "`policy`: as the policy writes turns; `turns`: bare actions; `list`: as CoPE."
    )
    forecast_gate: str = _knob("wins", "Which episodes are learnt from: `wins`, `all`, or `mixed` groups' wins.")
    forecast_weights: str = _knob("equal_groups", "`equal_groups`, or `cope` (1/m_g a sample).")
    forecast_skip_invalid: bool = _knob(True, "Pass over actions that were not executed, looking further ahead.")
    forecast_thought: bool = _knob(False, "Keep the current turn's thought before slot 0 as context.")
    forecast_length_norm: bool = _knob(False, "Weigh every action of a sample the same whatever its length.")
    forecast_max_samples: int | None = _knob(None, "Keep only the last so many samples of an episode.")
    forecast_max_length: int = _knob(4096, "Longest sample; the middle of a longer history is left out.")
    forecast_batch_size: int = _knob(8, "Samples in one forward pass.")

    # Evaluation during training
    eval_panel: str | None = _knob(None, "Panel to evaluate on: a shipped name or a file.")
    eval_samples: int = _knob(1, "Episodes a panel task.")
    eval_temperature: float = _knob(1.0, "Sampling temperature in evaluation; 0 is greedy.")

    # Other defaults than TRL's
    logging_steps: float = _knob(1, "Log every so many steps.")
    vllm_importance_sampling_mode: str = _knob(
        "token_truncate", "TRL's `sequence_mask` silently drops long episodes; per-token truncation does not."
    )
    max_completion_length: int | None = _knob(None, "`max_episode_tokens` by default.")

    def __post_init__(self) -> None:
        if self.max_completion_length is None:
            self.max_completion_length = self.max_episode_tokens
        if self.num_generations_eval is None:
            self.num_generations_eval = 1  # evaluation plays a panel, without groups
        super().__post_init__()
        if self.reward not in REWARDS:
            raise InputError(f"reward is one of {', '.join(REWARDS)}, not {self.reward!r}", type="bad_option")
        if not 0 < self.max_failed_share <= 1:
            raise InputError(f"max_failed_share lies in (0, 1], not {self.max_failed_share}", type="bad_option")
        if isinstance(self.environment_options, str):
            raise InputError("environment_options is a mapping, e.g. {simplifications: easy}", type="bad_option")
        self.branch_options()
        self.forecast_options()

    def limits(self) -> Limits:
        """Limits of an episode."""
        return Limits(
            self.max_turns,
            self.max_turn_tokens,
            self.max_episode_tokens,
            self.first_observation_chars,
            self.observation_chars,
            self.episode_attempts,
        )

    def sampling(self, temperature: float | None = None) -> Sampling:
        """How tokens are drawn; `temperature` overrides that of training."""
        return Sampling(self.temperature if temperature is None else temperature, self.top_p, self.top_k, self.min_p)

    def branch_options(self) -> BranchOptions:
        """How forecast samples are built."""
        return BranchOptions(
            horizon=self.forecast_horizon,
            layout=self.forecast_layout,
            skip_invalid=self.forecast_skip_invalid,
            thought=self.forecast_thought,
            length_norm=self.forecast_length_norm,
            max_samples_per_trajectory=self.forecast_max_samples,
        )

    def forecast_options(self) -> ForecastOptions:
        """Which episodes are learnt from, and how much each counts."""
        return ForecastOptions(gate=self.forecast_gate, weights=self.forecast_weights)
