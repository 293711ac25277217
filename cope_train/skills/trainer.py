"""Trains one policy that acts and extracts skills: a `CoPETrainer` whose rows come from co-evolution."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from cope_gym.errors import InputError
from cope_gym.skills.bank import SkillBank
from cope_gym.skills.documents import task_documents
from cope_gym.skills.remote import RemoteIndex
from cope_gym.skills.retrieval import TaskIndex
from cope_train.config import CoPEConfig
from cope_train.skills.source import SkillSource, source_order
from cope_train.trainer import CoPETrainer

logger = logging.getLogger(__name__)


class SkillTrainer(CoPETrainer):
    """See `CoPETrainer`; `args.skills` must be on.

    Args:
        model: As for `CoPETrainer`.
        args: The run; its `skill_…` options.
        tasks: Source tasks; skills are tried on the others of them, unless `index` says otherwise.
        index: Tasks to try skills on.
        **kwargs: As for `CoPETrainer`.

    Raises:
        InputError: There are too few tasks, or a source's rows do not fit into those of a rank.
    """

    def __init__(
        self,
        model: Any,
        args: CoPEConfig,
        tasks: list[str],
        index: TaskIndex | RemoteIndex | None = None,
        **kwargs: Any,
    ) -> None:
        sizes = args.skill_sizes()
        if index is None and len(tasks) <= sizes.tasks:
            raise InputError(
                f"skill_tasks={sizes.tasks} needs more than {sizes.tasks} training tasks, there are {len(tasks)}",
                type="bad_option",
            )
        self.index = index
        self._tasks = list(tasks)
        self._entropies: torch.Tensor | None = None
        count = args.max_steps * args.generation_batch_size // (sizes.skills * sizes.blocks)
        args.shuffle_dataset = False  # the blocks of a source stay together
        super().__init__(model, args, source_order(tasks, sizes.blocks, count, args.seed), **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        batch["extractor"] = self.source.extractor_rows().to(self.accelerator.device)
        return batch

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._entropies = found[1]
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        if not (self.model.training and self.args.skill_entropy_coef):
            return loss
        entropy = extractor_entropy(self._entropies, inputs)
        self._entropies = None  # it holds the graph
        return loss - self.args.skill_entropy_coef * entropy / self.current_gradient_accumulation_steps

    def _make_source(self, *args: Any, **kwargs: Any) -> SkillSource:
        source = SkillSource(*args, index=None, bank=self._open_bank(), **kwargs)
        source.use(self.index or self._build_index(source))
        return source

    def _build_index(self, source: SkillSource) -> TaskIndex | RemoteIndex:
        if given := self.args.skill_index:
            return RemoteIndex(given) if given.startswith(("http://", "https://")) else TaskIndex.load(given)
        logger.info("reading the descriptions of %d tasks", len(self._tasks))
        return TaskIndex(task_documents(source.setup.make_env, self._tasks), self.args.skill_encoder)

    def _open_bank(self) -> SkillBank:
        return SkillBank(self.args.skill_bank or Path(self.args.output_dir) / "skills.sqlite")


def extractor_entropy(entropies: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
    """(1/B)·Σ of the mean token entropy of every extractor's row, the other rows counting 0; failed rows as nowhere.

    Args:
        entropies: Shape (B, C).
        inputs: TRL's micro-batch with `extractor`.
    """
    mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    means = (entropies * mask).sum(1) / mask.sum(1).clamp(min=1)
    return (means * inputs["extractor"]).mean() * inputs.get("row_scale", 1.0)
