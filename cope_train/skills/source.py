"""Rows and advantages of skill co-evolution, as the episode source of a `CoPETrainer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl import GRPOTrainer

from cope_gym.skills.bank import SkillBank
from cope_gym.skills.remote import RemoteIndex
from cope_gym.skills.retrieval import TaskIndex
from cope_train.episodes import EpisodeSource, batch_rows, episode_reward
from cope_train.generation import open_backend
from cope_train.objectives.advantages import (
    extractor_advantages,
    extractor_rewards,
    solver_advantages,
    source_advantages,
)
from cope_train.rollout.driver import Episode, Rollout
from cope_train.skills.coevolution import (
    CoEvolution,
    Lineage,
    baseline_outcomes,
    outcomes,
    rows,
    source_outcomes,
)
from cope_train.trl_adapter import record_metric
from cope_train.turns import group_turn_advantages, token_advantages


class SkillSource(EpisodeSource):
    """Plays co-evolution instead of single episodes.

    TRL's prompts come as blocks of N equal rows; 1 + K·R blocks of one source follow each other inside one rank's
    slice (`source_order`), so every group is whole on its rank and no row travels.

    Args:
        *args: As for `EpisodeSource`.
        index: Tasks to try skills on; may be given later, by `use`.
        bank: Where skills and their outcomes are kept; `None` keeps none.
        **kwargs: As for `EpisodeSource`.

    Attributes:
        lineages: Those of the last rollout.
    """

    def __init__(
        self, *args: Any, index: TaskIndex | RemoteIndex | None = None, bank: SkillBank | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.bank = bank
        self.sizes = self.config.skill_sizes()
        self.lineages: list[Lineage] = []
        if index:
            self.use(index)

    def use(self, index: TaskIndex | RemoteIndex) -> None:
        """Sets the tasks to try skills on."""
        self.index = index
        self._texts = {document.id: document for document in index.documents}

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Plays the sources of this rank and everything that follows from them."""
        sources = prompts[:: self.sizes.skills * self.sizes.blocks]
        plan = CoEvolution(
            sources,
            self.sizes,
            self.setup,
            self._similar,
            lambda text: len(self.setup.template.tokenizer.encode(text, add_special_tokens=False)),
            (self.config.seed, *self._count(trainer)),
            trainer.accelerator.process_index * len(sources),
        )
        with open_backend(trainer, self.config.sampling(), self.setup.template, self.setup.ordered) as backend:
            rollout = Rollout(plan.jobs(), self.setup, backend, self.progress, plan.then)
            rollout.play()
        self.clock, self.lineages = rollout.clock, plan.lineages
        self.episodes = [episode for line in self.lineages for episode in rows(line, self.sizes)]
        self._describe(trainer.state.global_step)
        batch = batch_rows(self.episodes, self.setup.template.end_of_turn, self.config.reward)
        batch["episode_reward"] = [
            None if episode.failed else reward for episode, reward in zip(self.episodes, self._rewards(), strict=True)
        ]
        self._keep(trainer)
        return batch

    def advantages(self) -> torch.Tensor:
        """Advantages of the last rollout's rows, shape (B,) or, of turns, (B, C), in place of TRL's."""
        of_rows = torch.cat([self._line_advantages(line) for line in self.lineages])
        return self._of_turns(of_rows) if self.config.turn_advantages else of_rows

    def _of_turns(self, of_rows: torch.Tensor) -> torch.Tensor:
        """Gives every turn of a solver its own advantage; a skill keeps the one that it has as a whole."""
        of_turns: dict[int, list[float]] = {}
        for line in self.lineages:
            for j in range(self.sizes.tasks):
                group = [episode for (_, task, _), episode in line.solved.items() if task == j]
                values = group_turn_advantages(group, self.config.skill_solver_weight)
                of_turns |= {id(episode): value for episode, value in zip(group, values, strict=True)}
        values = [of_turns.get(id(e), a) for e, a in zip(self.episodes, of_rows.tolist(), strict=True)]
        return token_advantages(values, self.episodes)

    def extractor_rows(self) -> torch.Tensor:
        """Which of the last rollout's rows are an extractor's, shape (B,)."""
        of_source = torch.arange(self.sizes.blocks).repeat_interleave(self.sizes.skills) == 0
        return of_source.repeat(len(self.lineages))

    def report(self, trainer: GRPOTrainer) -> None:
        """Records what skills were worth in the last rollout, over all ranks."""
        values = self._values()
        local = [[value.nansum().item(), float((~value.isnan()).sum())] for value in values.values()]
        device = trainer.accelerator.device
        sums = trainer.accelerator.gather(torch.tensor([local], device=device)).sum(0).tolist()
        numbers = {name: total / count for name, (total, count) in zip(values, sums, strict=True) if count}
        if "outcome_without" in numbers and "outcome" in numbers:
            numbers["lift"] = numbers["outcome"] - numbers["outcome_without"]
        for name, value in numbers.items():
            record_metric(trainer, f"skills/{name}", value)

    def _similar(self, task_id: str, text: str) -> Sequence[str]:
        known = self._texts.get(task_id)
        category = known.category if known and self.config.skill_same_category else None
        hits = self.index.search(known.text if known else text, self.sizes.tasks, task_id, category)
        return [hit.document.id for hit in hits]

    def _outcome(self, episode: Episode) -> float | None:
        return episode_reward(episode, self.config.reward)

    def _tables(self, line: Lineage) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outcomes (N, K, R), parsed (N,), audited (N,) and outcomes without a skill (K, R)."""
        readings = [line.readings.get(i) for i in range(self.sizes.skills)]
        parsed = torch.tensor([bool(r and r.skill) for r in readings])
        audited = torch.tensor([bool(r and r.audited) for r in readings])
        table = outcomes(line, self.sizes, self._outcome)
        return table, parsed, audited, baseline_outcomes(line, self.sizes, self._outcome)

    def _line_advantages(self, line: Lineage) -> torch.Tensor:
        config = self.config
        table, parsed, audited, baseline = self._tables(line)
        extractor = extractor_advantages(table, parsed, audited, config.skill_extractor_weight)
        counted = baseline if config.skill_baseline_in_groups else None
        solver = solver_advantages(table, config.skill_solver_weight, counted)
        parts = [extractor, solver.permute(1, 2, 0).flatten()]
        if self.sizes.train_source:
            played = source_outcomes(line, self.sizes, self._outcome)
            parts.insert(1, source_advantages(played, baseline.flatten(), config.skill_solver_weight))
        return torch.cat(parts).float()

    def _rewards(self) -> list[float]:
        """Rewards in the order of rows: R_i of the skills, the source's own, outcomes by task, repeat and skill."""
        values: list[float] = []
        for line in self.lineages:
            table, parsed, audited, _ = self._tables(line)
            rewards = extractor_rewards(table, parsed, audited)
            for i, episode in line.extractions.items():
                # All episodes with this skill failed, so there is nothing to reward it by.
                episode.failed = episode.failed or bool(rewards[i].isnan())
                episode.trajectory.reward = float(rewards[i].nan_to_num())
            values += rewards.tolist()
            values += source_outcomes(line, self.sizes, self._outcome).tolist() if self.sizes.train_source else []
            values += table.permute(1, 2, 0).flatten().tolist()
        return values

    def _describe(self, step: int) -> None:
        for line in self.lineages:
            roles = {"source": line.played, "extractor": line.extractions, "solver": line.solved}
            for kind, episodes in roles.items():
                for episode in episodes.values():
                    episode.trajectory.step = step
                    episode.trajectory.extra |= {"role": kind, "source_task": line.source_task}
            for i, episode in line.extractions.items():
                reading = line.readings.get(i)
                episode.trajectory.extra["audit"] = list(reading.reasons) if reading else []
                # Forecasts are about actions in the environment; a skill is none.
                episode.buffer.turns.clear()

    def _values(self) -> dict[str, torch.Tensor]:
        """What is logged, one value an episode or skill; NaN where there is none."""
        tables = [self._tables(line) for line in self.lineages]
        written = [torch.tensor([i in line.readings for i in range(self.sizes.skills)]) for line in self.lineages]
        return {
            "extractor_reward": torch.cat([extractor_rewards(*t[:3]) for t in tables]),
            "outcome": torch.cat([t[0].flatten() for t in tables]),
            "parsed": torch.cat([t[1][there].float() for t, there in zip(tables, written, strict=True)]),
            "audited": torch.cat([t[2][there].float() for t, there in zip(tables, written, strict=True)]),
            "outcome_without": torch.cat([t[3].flatten() for t in tables]),
        }

    def _keep(self, trainer: GRPOTrainer) -> None:
        if self.bank is None:
            return
        origin = {"step": trainer.state.global_step, "policy": self.setup.describe.get("policy", "")}
        for line in self.lineages:
            table, _, _, plain = self._tables(line)
            known = self._texts.get(line.source_task)
            query, category = (known.text, known.category) if known else (line.source_task, "")
            keep_skills(self.bank, self.config.environment, line, table, plain, query, category, origin)


def keep_skills(
    bank: SkillBank,
    env: str,
    line: Lineage,
    table: torch.Tensor,
    plain: torch.Tensor,
    query: str,
    category: str,
    origin: dict[str, Any],
) -> None:
    """Stores a source's usable skills and what came of each.

    Args:
        bank: Where to.
        env: Environment name.
        line: The source.
        table: Outcomes with a skill, shape (N, K, R).
        plain: Outcomes without one, shape (K, R); NaN where there are none.
        query: The source task's text.
        category: The source task's category.
        origin: Provenance.
    """
    for i, reading in line.readings.items():
        if reading.usable is None:
            continue
        key = bank.add(env, line.source_task, reading.usable, query, category, origin)
        for j, task in enumerate(line.tasks):
            without = plain[j].nanmean().item()
            for value in table[i, j][~table[i, j].isnan()].tolist():
                bank.record(key, task, value, None if without != without else without)


def source_order(tasks: Sequence[str], blocks: int, count: int, seed: int) -> list[str]:
    """The prompts of a run: `count` sources in seeded order, reshuffled each epoch, each `blocks` times in a row."""
    generator = torch.Generator().manual_seed(seed)
    sources: list[str] = []
    while len(sources) < count:
        sources += [tasks[i] for i in torch.randperm(len(tasks), generator=generator).tolist()]
    return [task for task in sources[:count] for _ in range(blocks)]
