"""Skills of a bank for an evaluation's episodes: those of the most similar task, never those of the task itself."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from cope_gym.errors import InputError
from cope_gym.skills.bank import BankedSkill, SkillBank
from cope_gym.skills.extraction import with_skill
from cope_gym.skills.retrieval import DEFAULT_ENCODER, Document, TaskIndex


class BankLookup:
    """Finds a skill for a task, by the text of the task that the skill was extracted from.

    Args:
        bank: The bank; retired skills are left out.
        env: Environment whose skills count.
        encoder: As for `TaskIndex`.
        card_chars: Most characters of a skill before the agent.

    Attributes:
        settings: What decides which skill is found; part of an evaluation's result.

    Raises:
        InputError: The bank has no skill of this environment that is not retired.
    """

    def __init__(self, bank: SkillBank, env: str, encoder: str = DEFAULT_ENCODER, card_chars: int = 2000) -> None:
        self._skills = {skill.id: skill for skill in bank.skills(env)}  # best lift first
        if not self._skills:
            raise InputError(
                f"{bank.path} has no skill of {env} that is not retired; `cope skills list` shows what there is, "
                "`cope skills extract` makes some.",
                type="bad_request",
            )
        self._rank = {key: i for i, key in enumerate(self._skills)}
        self._index = TaskIndex([Document(s.id, s.query, s.category) for s in self._skills.values()], encoder)
        self._card_chars = card_chars
        self.settings: Mapping[str, Any] = {
            "digest": sha256("\n".join(self._skills).encode()).hexdigest()[:16],
            "skills": len(self._skills),
            "categories": sorted({skill.category for skill in self._skills.values()}),
            "encoder": encoder,
            "card_chars": card_chars,
        }

    def find(self, task_id: str, text: str) -> BankedSkill | None:
        """Returns the skill for a task, or `None` where all are of the task itself or of its near-duplicates.

        Among skills of equally similar tasks the one with the best measured lift is taken.

        Args:
            task_id: The task.
            text: Its description.
        """
        others = [
            hit
            for hit in self._index.search(text, len(self._skills))
            if self._skills[hit.document.id].source_task != task_id
        ]
        if not others:
            return None
        best = min(
            (hit for hit in others if hit.score >= others[0].score - 1e-6), key=lambda hit: self._rank[hit.document.id]
        )
        return self._skills[best.document.id]

    def condition(self, system: str, skill: BankedSkill | None) -> str:
        """Returns the system prompt with the card of a skill, as solvers are conditioned in training."""
        return with_skill(system, skill.skill if skill else None, self._card_chars, len).strip()
