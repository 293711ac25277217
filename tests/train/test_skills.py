"""Skill co-evolution: who plays what, what each skill earns, and that the source is never its own test."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from skill_world import TASKS, WORDS, DoorEnv
from toy import ToyEnv, make_config, make_model, make_tokenizer

from cope_gym import trajectory
from cope_gym.errors import InfrastructureError, InputError
from cope_gym.evaluate.panels import Panel
from cope_gym.skills.bank import SkillBank
from cope_gym.skills.documents import task_documents
from cope_gym.skills.retrieval import TaskIndex
from cope_train.rollout.backends import Completion, Request
from cope_train.rollout.driver import Episode, Limits, Rollout, Setup
from cope_train.rollout.template import ChatTemplate
from cope_train.skills.coevolution import CoEvolution, Sizes, outcomes, rows, source_outcomes
from cope_train.skills.source import source_order
from cope_train.skills.trainer import SkillTrainer, extractor_entropy

pytestmark = pytest.mark.train

TOKENIZER = make_tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)
SETUP = Setup(DoorEnv, TEMPLATE, "Play.", "plain", Limits(turns=1, turn_tokens=200), {"env": "doors"})
SIZES = Sizes(skills=3, tasks=2, repeats=2, baseline=True)


class Scripted:
    """Plays the roles by reading its prompt: skill 0 names the word that was seen, 1 a wrong one, 2 is no JSON."""

    batches = False
    context = 100_000

    def __init__(self) -> None:
        self.queue: list[Request] = []
        self.prompts: dict[Hashable, str] = {}
        self.extractions = 0

    def submit(self, request: Request) -> None:
        self.queue.append(request)

    def poll(self) -> list[Completion]:
        done = [self._complete(request) for request in self.queue]
        self.queue = []
        return done

    def release(self, key: Hashable) -> None:
        pass

    def _complete(self, request: Request) -> Completion:
        prompt = self.prompts[request.key] = TOKENIZER.decode(request.ids)
        ids = [*TOKENIZER.encode(self._reply(prompt)), TEMPLATE.end_of_turn]
        return Completion(request.key, ids, [0.0] * len(ids), True)

    def _reply(self, prompt: str) -> str:
        if "You study one episode" in prompt:
            seen = re.findall(r"It wants (\w+)", prompt)[-1]
            word = (seen, "sing", "")[self.extractions % 3]
            self.extractions += 1
            return json.dumps({"name": "door", "description": f"Say {word}."}) if word else "no skill"
        said = re.findall(r"Say (\w+)\.", prompt)
        return said[-1] if said else "look"


def same_family(task: str, text: str) -> list[str]:
    return [other for other in TASKS if other != task and other.split("/")[0] == task.split("/")[0]][:2]


def play(sources: list[str], make_env: Any = DoorEnv, sizes: Sizes = SIZES) -> tuple[CoEvolution, Rollout, Scripted]:
    backend = Scripted()
    setup = Setup(make_env, TEMPLATE, "Play.", "plain", SETUP.limits, SETUP.describe)
    plan = CoEvolution(sources, sizes, setup, same_family, len, (0,))
    rollout = Rollout(plan.jobs(), setup, backend, then=plan.then)
    rollout.play()
    return plan, rollout, backend


def won(episode: Episode) -> float | None:
    return None if episode.failed else float(episode.trajectory.success)


def test_every_stage_is_played_and_the_right_skill_wins() -> None:
    plan, rollout, _ = play(["red/0", "blue/1"])
    # per source: itself, 3 skills, 2 tasks · 2 repeats without a skill, 3 · 2 · 2 with one
    assert len(rollout.episodes) == 2 * (1 + 3 + 4 + 12)
    for line in plan.lineages:
        table = outcomes(line, SIZES, won)
        assert table.shape == (3, 2, 2)
        assert table[0].eq(1).all() and table[1:].eq(0).all()
        assert [line.readings[i].skill is not None for i in range(3)] == [True, True, False]
        assert all(e.trajectory.score == 0 for e in line.baseline.values())


def test_a_skill_that_fails_conditions_nothing() -> None:
    plan, rollout, _ = play(["red/0"])
    for line in plan.lineages:
        for (i, *_), episode in line.solved.items():
            system = episode.trajectory.messages[0]["content"]
            assert ("Say " in system) is (i != 2)
            assert (system == "Play.") is (i == 2)


def test_the_source_is_not_among_its_tasks_and_groups_share_a_start() -> None:
    plan, _, _ = play(["red/0", "green/3"])
    for line in plan.lineages:
        assert line.source_task not in line.tasks
        for j in range(2):
            seeds = {e.job.seed for (_, task, _), e in line.solved.items() if task == j}
            assert len(seeds) == 1


def test_rows_are_blocks_of_n() -> None:
    plan, _, _ = play(["red/0"])
    made = rows(plan.lineages[0], SIZES)
    assert len(made) == 3 * SIZES.blocks == 15
    assert [e.job.tag[0] for e in made] == ["extract"] * 3 + ["solve"] * 12  # type: ignore[index]
    assert [e.job.tag[2:] for e in made[3:9]] == [(i, 0, r) for r in range(2) for i in range(3)]  # type: ignore[index]


def test_a_trained_source_is_a_block_of_its_own() -> None:
    sizes = replace(SIZES, train_source=True)
    plan, rollout, _ = play(["red/0"], sizes=sizes)
    line = plan.lineages[0]
    assert len(rollout.episodes) == 3 + 3 + 4 + 12 and sizes.blocks == 6
    made = rows(line, sizes)
    assert [e.job.tag[0] for e in made] == ["extract"] * 3 + ["source"] * 3 + ["solve"] * 12  # type: ignore[index]
    assert source_outcomes(line, sizes, won).tolist() == [0.0, 0.0, 0.0]
    assert len({e.job.seed for e in line.played.values()}) == 1
    assert len({e.job.sampling_seed for e in line.played.values()}) == 3


def test_a_source_draws_the_same_numbers_on_whichever_rank() -> None:
    together = CoEvolution(["red/0", "blue/1"], SIZES, SETUP, same_family, len, (0,))
    second = CoEvolution(["blue/1"], SIZES, SETUP, same_family, len, (0,), first=1)
    assert together.jobs()[1].sampling_seed == second.jobs()[0].sampling_seed


class FailingEnv(DoorEnv):
    """Breaks on one task, for the service's reasons."""

    broken = "red/2"

    def step(self, action: str):  # type: ignore[override]
        if self.task == self.broken:
            raise InfrastructureError("no worker", type="worker_failed", retryable=True)
        return super().step(action)


def test_a_failed_episode_is_a_missing_cell_and_a_failed_row() -> None:
    plan, _, _ = play(["red/0"], FailingEnv)
    line = plan.lineages[0]
    assert line.tasks == ["red/1", "red/2"]
    table = outcomes(line, SIZES, won)
    assert table[:, 1].isnan().all() and not table[:, 0].isnan().any()
    assert [e.failed for e in rows(line, SIZES)] == [False] * 3 + [False] * 6 + [True] * 6


def test_a_failed_source_fails_all_of_its_rows_and_no_other() -> None:
    plan, _, _ = play(["red/2", "blue/0"], FailingEnv)
    assert [all(e.failed for e in rows(line, SIZES)) for line in plan.lineages] == [True, False]


def test_too_few_similar_tasks_are_said() -> None:
    plan = CoEvolution(["red/0"], SIZES, SETUP, lambda task, text: ["red/1"], len, (0,))
    with pytest.raises(InfrastructureError, match="1 similar"):
        Rollout(plan.jobs(), SETUP, Scripted(), then=plan.then).play()


def test_source_order_keeps_blocks_together_and_shuffles_every_epoch() -> None:
    order = source_order(["a", "b", "c"], blocks=2, count=6, seed=1)
    sources = order[::2]
    assert order == [task for task in sources for _ in range(2)]
    assert sorted(sources[:3]) == sorted(sources[3:]) == ["a", "b", "c"]
    assert source_order(["a", "b", "c"], 2, 6, 1) == order


def config(folder: Path, **options: Any) -> Any:
    sizes = {"skill_count": 2, "skill_tasks": 2, "skill_encoder": "bm25", "skill_tokens": 8, "max_episode_tokens": 64}
    rows = {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2}
    return make_config(folder, skills=True, skill_baseline=True, **(sizes | rows | options))


def test_a_run_trains_both_roles_and_reports_them(tmp_path: Path) -> None:
    before = torch.cat([p.flatten() for p in make_model(TOKENIZER).parameters()])
    trainer = train(tmp_path)
    assert not torch.equal(before, torch.cat([p.flatten() for p in trainer.model.parameters()]))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "skills/outcome" in line]
    assert len(logged) == 2
    assert {"skills/extractor_reward", "skills/parsed", "skills/audited", "skills/lift"} <= logged[0].keys()
    source = trainer.source
    advantages = source.advantages()  # type: ignore[attr-defined]
    assert advantages is not None and len(advantages) == 12
    groups = advantages.view(-1, 2)
    assert torch.allclose(groups.sum(1), torch.zeros(6), atol=1e-5)
    assert groups[1:].abs().sum() > 0
    episodes = [
        json.loads(line) for line in (tmp_path / "trajectories" / "step_000000.jsonl").read_text().splitlines()
    ]
    assert [e["extra"]["role"] for e in episodes].count("extractor") == 4


def train(folder: Path, panel: Panel | None = None, **options: Any) -> SkillTrainer:
    pytest.importorskip("bm25s", reason="the `skills` extra is not installed")
    trainer = SkillTrainer(
        make_model(TOKENIZER),
        config(folder, **options),
        ["open door", "open box", "close door", "take key", "take box"],
        make_env=ToyEnv,
        system_prompt="Play.",
        processing_class=TOKENIZER,
        panel=panel,
    )
    trainer.train()
    return trainer


def test_a_run_is_evaluated_on_a_panel_without_skills(tmp_path: Path) -> None:
    panel = Panel("toy", "toy", "test", ("open window", "take cup", "close box")).sealed()
    train(tmp_path, panel=panel, max_steps=2, eval_strategy="steps", eval_steps=1)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "eval_success" in line]) == 2
    played = list(trajectory.read(tmp_path / "evaluations" / "step_000002" / "trajectories.jsonl"))
    assert {e.task_id for e in played} == set(panel.task_ids)
    assert all(e.turns and "skill" not in e.extra for e in played)
    assert len([line for line in lines if "skills/outcome" in line]) == 2


def test_a_run_that_trains_the_source(tmp_path: Path) -> None:
    trainer = train(tmp_path, max_steps=1, skill_train_source=True, per_device_train_batch_size=8)
    source = trainer.source
    rewards = torch.tensor([e.trajectory.score for e in source.episodes]).view(2, 4, 2)
    advantages = source.advantages().view(2, 4, 2)  # type: ignore[union-attr]
    assert [e.trajectory.extra["role"] for e in source.episodes[:6]] == ["extractor"] * 2 + ["source"] * 2 + [
        "solver"
    ] * 2
    for s in range(2):
        group = rewards[s, 1]
        expected = (group - group.mean()) / (group.std(correction=0) + 1e-6)
        assert advantages[s, 1].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    assert advantages[:, 1].abs().sum() > 0
    assert source.extractor_rows().nonzero().flatten().tolist() == [0, 1, 8, 9]  # type: ignore[attr-defined]


def test_entropy_of_extractors_golden() -> None:
    entropies = torch.tensor([[1.0, 3.0, 9.0], [2.0, 2.0, 2.0], [4.0, 4.0, 4.0], [5.0, 5.0, 5.0]])
    inputs = {
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [0, 0, 0]]),
        "extractor": torch.tensor([True, False, True, True]),
    }
    # Rows: mean of 1 and 3; another role; 4; failed. Four rows in all, or three that count.
    assert extractor_entropy(entropies, inputs).item() == pytest.approx((2 + 4) / 4)
    assert extractor_entropy(entropies, inputs | {"row_scale": torch.tensor(4 / 3)}).item() == pytest.approx(2)


def test_the_entropy_coefficient_acts_on_skills_alone(tmp_path: Path) -> None:
    """With all advantages 0 nothing else moves the weights, and the solver's answers are not sharpened."""
    still = {"skill_extractor_weight": 0.0, "skill_solver_weight": 0.0}
    # One step of SGD is linear in the coefficient; the step is large, so that rounding of the weights does not show.
    weights = {**still, "max_steps": 1, "optim": "sgd", "learning_rate": 100.0}
    start = torch.cat([p.flatten() for p in make_model(TOKENIZER).parameters()])
    moved = {}
    for coefficient in (0.0, -0.03, -0.06):
        trainer = train(tmp_path / str(coefficient), skill_entropy_coef=coefficient, max_grad_norm=0.0, **weights)
        moved[coefficient] = torch.cat([p.detach().flatten() for p in trainer.model.parameters()]) - start
    assert moved[0.0].abs().max() == 0
    assert moved[-0.03].abs().max() > 0
    torch.testing.assert_close(moved[-0.06], 2 * moved[-0.03], rtol=1e-2, atol=1e-6)


def test_usable_skills_are_kept_with_their_lift(tmp_path: Path) -> None:
    plan, _, _ = play(["red/0"])
    line = plan.lineages[0]
    bank = SkillBank(tmp_path / "bank.sqlite")
    from cope_train.skills.source import keep_skills

    keep_skills(bank, "doors", line, outcomes(line, SIZES, won), torch.zeros(2, 2), "a red door", "red", {"step": 0})
    best, worst = bank.skills("doors")
    assert best.skill.description == f"Say {WORDS['red']}." and best.lift == 1.0 and best.uses == 4
    assert worst.lift == 0.0 and best.source_task == "red/0"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"skill_count": 1}, "at least 2"),
        ({"skill_tasks": 0}, "skill_tasks is at least 1"),
        ({"per_device_train_batch_size": 4}, "multiple of 6"),
        ({"max_steps": -1, "num_train_epochs": 1}, "max_steps"),
    ],
)
def test_a_geometry_that_does_not_fit_is_said(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises((InputError, ValueError), match=says):
        config(tmp_path, **options)


def test_documents_come_from_the_environment() -> None:
    pytest.importorskip("bm25s", reason="the `skills` extra is not installed")
    documents = task_documents(DoorEnv, TASKS, threads=3)
    assert [d.id for d in documents] == TASKS and documents[0].category == "red"
    hits = TaskIndex(documents, "bm25").search(documents[0].text, 2, "red/0", category="red")
    assert {h.document.category for h in hits} == {"red"}
