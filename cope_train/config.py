"""All options of a training run, as one dataclass on top of TRL's `GRPOConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trl import GRPOConfig

from cope_gym.errors import InputError
from cope_train.objective_config import ObjectiveConfig, knob
from cope_train.rollout.backends import Sampling
from cope_train.rollout.driver import Limits
from cope_train.skills.config import SkillConfig

REWARDS = ("success", "score")


@dataclass
class CoPEConfig(SkillConfig, ObjectiveConfig, GRPOConfig):
    """`GRPOConfig` and what episodes, objectives and evaluation need. With every objective off it trains stock GRPO.

    `output_dir` is the run's folder: checkpoints, `metrics.jsonl`, `trajectories/`, `evaluations/`.
    `max_completion_length` is set to `max_episode_tokens` unless given.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *GRPOConfig._VALID_DICT_FIELDS,
        "environment_options",
        "server_settings",
        "vllm_engine_options",
    ]

    stage: str = knob("rl", "`rl`; `sft` clones recorded episodes, with options of its own (`--stage sft`).")

    # Environment
    environment: str = knob("sciworld", "Short environment name.")
    split: str | None = knob(None, "Split to train on; the benchmark's first (training) split by default.")
    environment_options: dict[str, Any] | str | None = knob(
        None, "Options of the benchmark, e.g. {simplifications: easy}."
    )
    train_panel: str | None = knob(None, "Train on a panel's tasks and options: a shipped name or a file.")
    task_categories: list[str] | None = knob(None, "Train on tasks of these categories only.")
    max_tasks: int | None = knob(None, "Train on the first so many tasks of each category.")
    base_url: str | None = knob(None, "Environment server(s), comma-separated; a local one is started by default.")
    server_settings: dict[str, Any] | str | None = knob(
        None, "Settings of the benchmark for the server that `cope launch` starts, e.g. {user_model: NAME}."
    )
    adapter: str | None = knob(None, "Third-party adapter, MODULE:CLASS, for the server that `cope launch` starts.")
    system_prompt: str | None = knob(None, "File with the system prompt; the environment's own by default.")
    action_format: str | None = knob(None, "How actions are written; the benchmark's published format by default.")

    # Episodes
    reward: str = knob("success", "What GRPO maximises: `success` (0 or 1) or `score` (in [0, 1]).")
    turn_advantages: bool = knob(
        False, "One advantage a turn, from its own reward, for episodes that end at their first wrong step (Mind2Web)."
    )
    max_turns: int = knob(20, "Most action turns of an episode.")
    turn_stages: list[int] | None = knob(
        None, "Most action turns by stage, e.g. 10 20 30 (ScalingInter-RL); the last replaces max_turns."
    )
    turn_stage_steps: int = knob(100, "Training steps of a stage of turn_stages.")
    max_turn_tokens: int = knob(64, "Most sampled tokens of a turn.")
    max_episode_tokens: int = knob(4096, "Most tokens after the prompt, observations included.")
    first_observation_chars: int = knob(4000, "Where the first observation is cut.")
    observation_chars: int = knob(2000, "Where later observations are cut.")
    episode_attempts: int = knob(2, "How often an episode is tried when the service fails.")
    max_failed_share: float = knob(0.5, "A rollout in which a larger share of episodes failed ends the run.")
    episode_seconds: float | None = knob(None, "An episode that takes longer fails, whatever it waits for.")
    straggler_share: float = knob(1.0, "Once this share of a rollout's episodes is over, the others are cut off …")
    straggler_seconds: float = knob(30.0, "… after so many seconds; they count as failed.")
    resample_budget: int = knob(
        0, "Groups that every process may play again on other tasks in a rollout, because all rewards are equal."
    )
    environment_threads: int = knob(64, "Most environment calls at the same time.")
    gather_seconds: float = knob(0.1, "How long the Transformers sampler waits for more episodes to become ready.")
    ordered_rollouts: bool = knob(False, "Batches that do not depend on timing: slower, repeatable to the bit.")

    # Evaluation during training
    eval_panel: list[str] | None = knob(None, "Panel to evaluate on, or several: shipped names or files.")
    eval_samples: int = knob(1, "Episodes a panel task.")
    eval_temperature: float = knob(1.0, "Sampling temperature in evaluation; 0 is greedy.")

    # Other defaults than TRL's
    logging_steps: float = knob(1, "Log every so many steps.")
    vllm_importance_sampling_mode: str = knob(
        "token_truncate", "TRL's `sequence_mask` silently drops long episodes; per-token truncation does not."
    )
    max_completion_length: int | None = knob(None, "`max_episode_tokens` by default.")
    vllm_engine_options: dict[str, Any] | str | None = knob(
        None, "Further arguments of vLLM's engine in colocate mode, e.g. {kv_cache_memory_bytes: 8000000000}."
    )

    def __post_init__(self) -> None:
        if self.max_completion_length is None:
            self.max_completion_length = self.max_episode_tokens
        if self.num_generations_eval is None:
            self.num_generations_eval = 1  # evaluation plays a panel, without groups
        if self.skills:
            self.num_generations = self.skill_count
        if self.turn_stages:
            self._check_stages(self.turn_stages)
            self.max_turns = self.turn_stages[-1]
        if isinstance(self.eval_panel, str):  # one, as a file of options has it
            self.eval_panel = [self.eval_panel]
        self.environment_options = self.environment_options or {}
        self.server_settings = self.server_settings or {}
        self.vllm_engine_options = self.vllm_engine_options or {}
        super().__post_init__()
        if self.reward not in REWARDS:
            raise InputError(f"reward is one of {', '.join(REWARDS)}, not {self.reward!r}", type="bad_option")
        if not 0 < self.max_failed_share <= 1:
            raise InputError(f"max_failed_share lies in (0, 1], not {self.max_failed_share}", type="bad_option")
        for name in ("environment_options", "server_settings", "vllm_engine_options"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name} is a mapping, e.g. {{simplifications: easy}}", type="bad_option")
        self._check_rollouts()
        self.check_objectives()
        if self.skills:
            self.check_skills()

    def _check_rollouts(self) -> None:
        rows = self.per_device_train_batch_size * (self.steps_per_generation or 1)
        if self.resample_budget and (self.skills or rows % self.num_generations):
            raise InputError(
                f"resample_budget needs whole groups on every process: its {rows} rows (per_device_train_batch_size × "
                f"steps_per_generation) are no multiple of num_generations={self.num_generations}"
                if not self.skills
                else "resample_budget is not possible with skills, whose groups are made of one source",
                type="bad_option",
            )
        if self.turn_advantages and not self.skills and rows % self.num_generations:
            raise InputError(
                f"turn_advantages needs whole groups on every process: its {rows} rows (per_device_train_batch_size × "
                f"steps_per_generation) are no multiple of num_generations={self.num_generations}",
                type="bad_option",
            )
        if self.turn_advantages and (self.pad_to_multiple_of or self.use_liger_kernel):
            raise InputError(
                "turn_advantages are one a token: leave out pad_to_multiple_of and use_liger_kernel", type="bad_option"
            )
        if not 0 < self.straggler_share <= 1:
            raise InputError(f"straggler_share lies in (0, 1], not {self.straggler_share}", type="bad_option")
        if self.ordered_rollouts and (self.episode_seconds or self.straggler_share < 1):
            raise InputError(
                "ordered_rollouts do not depend on time: leave out episode_seconds and straggler_share",
                type="bad_option",
            )

    def _check_stages(self, stages: list[int]) -> None:
        if self.skills:
            raise InputError("turn_stages are not possible with skills: set max_turns", type="bad_option")
        if min(stages) < 1 or max(stages) > stages[-1] or self.turn_stage_steps < 1:
            raise InputError(
                "turn_stages are at least 1 and none is above the last, and turn_stage_steps is at least 1, not "
                f"{stages} and {self.turn_stage_steps}",
                type="bad_option",
            )

    def turns_at(self, step: int) -> int:
        """Most action turns of an episode after so many training steps; nothing else decides, resumed or not."""
        stages = self.turn_stages or [self.max_turns]
        return stages[min(step // self.turn_stage_steps, len(stages) - 1)]

    def limits(self) -> Limits:
        """Limits of an episode."""
        return Limits(
            self.max_turns,
            self.max_turn_tokens,
            self.max_episode_tokens,
            self.first_observation_chars,
            self.observation_chars,
            self.episode_attempts,
            self.episode_seconds,
        )

    def sampling(self, temperature: float | None = None) -> Sampling:
        """How tokens are drawn; `temperature` overrides that of training."""
        return Sampling(self.temperature if temperature is None else temperature, self.top_p, self.top_k, self.min_p)
