"""Options of skill co-evolution, as a part of `CoPEConfig`. Off by default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cope_gym.errors import InputError
from cope_train.objective_config import knob
from cope_train.skills.coevolution import Sizes


@dataclass
class SkillConfig:
    """Knobs of skill co-evolution (Evolving-RL, arXiv 2605.10663)."""

    skills: bool = knob(False, "Train the policy to extract skills from its episodes and to use them.")
    skill_count: int = knob(8, "N, skills extracted from one source episode; `num_generations` is set to it.")
    skill_tasks: int = knob(4, "K, similar other tasks that each skill is tried on.")
    skill_repeats: int = knob(1, "R, episodes of each skill on each task.")
    skill_extractor_weight: float = knob(0.2, "λ_e, weight of the extractor's advantages.")
    skill_solver_weight: float = knob(1.0, "λ_s, weight of the solver's advantages.")
    skill_baseline: bool = knob(False, "Also play R episodes without a skill on each task, to measure lift.")
    skill_baseline_in_groups: bool = knob(False, "Let these episodes count in the solver groups' mean and deviation.")
    skill_train_source: bool = knob(
        False, "Play every source task N times without a skill and train on these episodes as a group of their own."
    )
    skill_entropy_coef: float = knob(
        -0.03, "Coefficient of the entropy of skills in the loss, as `entropy_coef`; negative keeps extraction sharp."
    )
    skill_encoder: str = knob("minilm", "`minilm`, `bm25`, or a sentence-transformers model by name or path.")
    skill_index: str | None = knob(
        None, "File of `cope retrieval build` or URL of `cope retrieval serve`; made of the training tasks by default."
    )
    skill_same_category: bool = knob(False, "Try skills on tasks of the source's category only.")
    skill_tokens: int = knob(1536, "Most sampled tokens of an extraction.")
    skill_card_tokens: int = knob(512, "Most tokens of a skill before a solver.")
    skill_history_chars: int = knob(12000, "Most characters of the source episode before the extractor.")
    skill_prompt: str | None = knob(None, "File with the extractor's system prompt; our own by default.")
    skill_bank: str | None = knob(None, "File of the skill bank; `skills.sqlite` in the run's folder by default.")

    def skill_sizes(self) -> Sizes:
        """How many episodes one source makes."""
        return Sizes(
            self.skill_count,
            self.skill_tasks,
            self.skill_repeats,
            self.skill_baseline,
            self.skill_tokens,
            self.skill_card_tokens,
            self.skill_history_chars,
            Path(self.skill_prompt).read_text(encoding="utf-8").strip() if self.skill_prompt else "",
            self.skill_train_source,
        )

    def check_skills(self) -> None:
        """Checks the options against the batch geometry.

        Raises:
            InputError: A source's rows do not fit into the rows of one rank, or a number makes no sense.
        """
        args: Any = self
        if self.skill_prompt and not Path(self.skill_prompt).is_file():
            raise _bad(f"skill_prompt names no file: {self.skill_prompt}")
        for name in ("skill_tasks", "skill_repeats"):
            if getattr(self, name) < 1:
                raise _bad(f"{name} is at least 1, not {getattr(self, name)}")
        rows = args.per_device_train_batch_size * args.steps_per_generation
        need = self.skill_count * self.skill_sizes().blocks
        if rows % need:
            raise _bad(
                f"{need} rows a source, skill_count · (1 + skill_tasks · skill_repeats) and skill_count more with "
                f"skill_train_source, belong to one rank, but a rank has {rows}, per_device_train_batch_size · "
                f"gradient_accumulation_steps: make that a multiple of {need}"
            )
        if args.max_steps <= 0:
            raise _bad("skill co-evolution needs max_steps, a number of optimizer steps")


def _bad(detail: str) -> InputError:
    return InputError(detail, type="bad_option")
