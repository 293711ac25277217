"""Report, view and compare from folders on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evaluate_runs import episode, write_evaluation, write_run
from test_viewer import Parsed

from cope_gym import trajectory
from cope_gym.errors import InputError
from cope_gym.evaluate import compare, curves, runs, statistics
from cope_gym.evaluate.report import report, view

BEFORE = [i % 4 == 0 for i in range(24)]
AFTER = [i % 4 != 1 for i in range(24)]


def index(path: Path) -> dict[str, object]:
    return Parsed(path.read_text()).block("index")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a made-up training run."""
    run = tmp_path_factory.mktemp("first")
    write_run(run, BEFORE, AFTER)
    return report(run)


def test_report_of_a_training_run(reported: Path) -> None:
    assert reported.name == "report.html"
    found = index(reported)
    assert found["headline"] == "Success 25.0 % → 75.0 % on toy (24 tasks)"
    assert "beyond chance" in str(found["subtitle"])
    assert [r["label"] for r in found["runs"]] == ["step 0", "step 30", "training"]  # type: ignore[attr-defined]
    names = [chart["name"] for chart in found["curves"]]  # type: ignore[attr-defined]
    assert names == ["reward", "forecast/loss", "loss"]
    assert len(found["curves"][0]["lines"][0]["points"]) == 30  # type: ignore[index]
    success = found["comparisons"][0]  # type: ignore[index]
    assert (success["a"], success["b"], success["better"], success["worse"]) == (0, 1, 12, 0)
    assert success["difference"]["value"] == pytest.approx(0.5)
    assert len(found["episodes"]["run"]) == 24 + 24 + 12  # type: ignore[index]
    tiles = {tile["label"]: tile for tile in found["tiles"]}  # type: ignore[attr-defined]
    assert tiles["Success"]["value"] == "75.0 %" and tiles["Success"]["change"] == "+50.0"
    assert tiles["Training"]["value"] == "30 steps"
    assert found["facts"]["Panel"].startswith("toy: split test")  # type: ignore[index]


def test_one_number_under_several_names_is_one_chart() -> None:
    rows = [
        {"step": i, "reward": i / 3, "episodes/score": i / 3, "loss": i / 3, "kl": 0.5, "entropy": 0.5} for i in (1, 2)
    ]
    charts = curves.charts({"a": rows, "b": rows})
    assert {chart["name"]: chart["also"] for chart in charts} == {
        "reward": ["episodes/score"], "loss": [], "entropy": [], "kl": []
    }  # fmt: skip


def test_report_draws_pngs_beside_it(reported: Path) -> None:
    pytest.importorskip("matplotlib", reason="PNGs need the train extra")
    for name in ("learning_curves.png", "evaluation.png"):
        assert (reported.parent / name).read_bytes().startswith(b"\x89PNG")


def test_small_change_is_not_sold_as_more(tmp_path: Path) -> None:
    after = list(BEFORE)
    after[1] = True
    write_run(tmp_path, BEFORE, after)
    assert "may be chance" in str(index(report(tmp_path))["subtitle"])


@pytest.mark.parametrize("kept", ["metrics.jsonl", "evaluations", "trajectories"])
def test_report_of_what_there_is(tmp_path: Path, kept: str) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    write_run(whole, BEFORE, AFTER)
    run.mkdir()
    (whole / kept).rename(run / kept)
    assert index(report(run))["title"] == "run"


def test_report_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no metrics.jsonl"):
        report(tmp_path)


def test_long_trainings_are_thinned_evenly(tmp_path: Path) -> None:
    for step in range(40):
        episodes = [episode(100 * step + i, True, turns=1, tokens=True) for i in range(4)]
        for each in episodes:
            each.step = step
        for rank in (0, 1):
            name = f"step_{step:06d}" + (f"_rank{rank}" if rank else "")
            trajectory.write(tmp_path / "trajectories" / f"{name}.jsonl", episodes)
    found = runs.training_episodes(tmp_path, most=80)
    steps = sorted({e.step for e in found if e.step is not None})
    assert len(found) == 80 and len(steps) == 10 and steps[0] == 0 and steps[-1] == 39
    assert sum(e.tokens is not None for e in found) == 10 * (64 // 10)


def test_view_of_evaluations_and_files(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "a", BEFORE)
    write_evaluation(tmp_path / "b", AFTER)
    trajectory.write(tmp_path / "c.jsonl", [episode(1, True)])
    path = view([f"base={tmp_path / 'a'}", f"new={tmp_path / 'b'}", str(tmp_path / "c.jsonl")], tmp_path / "v.html")
    found = index(path)
    assert [r["label"] for r in found["runs"]] == ["base", "new", "c"]  # type: ignore[attr-defined]
    assert len(found["comparisons"]) == 2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="holds no episodes"):
        view([str(tmp_path)], tmp_path / "w.html")


def test_compare_over_seeds(tmp_path: Path) -> None:
    weaker = [AFTER, [*AFTER[:-1], not AFTER[-1]], AFTER]
    for seed in range(3):
        write_run(tmp_path / f"grpo{seed}", BEFORE, BEFORE, shift=seed / 10)
        write_run(tmp_path / f"cope{seed}", BEFORE, weaker[seed], shift=seed / 10)
    arms = [f"{arm}=" + ",".join(str(tmp_path / f"{arm}{seed}") for seed in range(3)) for arm in ("grpo", "cope")]
    table = compare.compare(arms, tmp_path / "out")
    assert table == json.loads((tmp_path / "out" / "comparison.json").read_text())
    grpo, cope = table["arms"]
    assert (grpo["seeds"], grpo["episodes"]) == (3, 72)
    assert grpo["metrics"]["success"]["value"] == pytest.approx(0.25)
    assert grpo["seed_deviation"]["success"] == 0.0
    assert cope["by_seed"]["success"] == pytest.approx([18 / 24, 17 / 24, 18 / 24])
    assert cope["seed_deviation"]["success"] == pytest.approx((1 / 24) / 3**0.5)
    assert cope["metrics"]["success"]["method"] == "bootstrap over tasks and seeds"
    difference = table["comparisons"][0]["difference"]
    assert difference["value"] == pytest.approx((18 + 17 + 18) / 72 - 0.25)
    found = index(tmp_path / "out" / "comparison.html")
    reward = next(chart for chart in found["curves"] if chart["name"] == "reward")  # type: ignore[attr-defined]
    assert [line["run"] for line in reward["lines"]] == ["grpo", "cope"]
    step, low, high = reward["lines"][0]["band"][-1]
    assert (step, low, high) == (30, pytest.approx(1.0), pytest.approx(1.2))


def test_compare_refuses_what_cannot_be_compared(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "a", BEFORE)
    write_evaluation(tmp_path / "b", AFTER, panel={"digest": "x", "name": "other", "split": "", "task_ids": []})
    write_evaluation(tmp_path / "c", AFTER)
    result = json.loads((tmp_path / "c" / "result.json").read_text())
    (tmp_path / "c" / "result.json").write_text(json.dumps(result | {"complete": False}))
    a, b, c = (str(tmp_path / name) for name in "abc")
    with pytest.raises(InputError, match="different panels"):
        compare.compare([a, b], tmp_path / "out")
    with pytest.raises(InputError, match="Partial results are biased"):
        compare.compare([a, c], tmp_path / "out")
    write_evaluation(tmp_path / "d", AFTER, versions={"engine_flags": {"user_model": "large"}})
    write_evaluation(tmp_path / "e", AFTER, versions={"engine_flags": {"user_model": "small"}})
    with pytest.raises(InputError, match=r'differ in user_model \("large" and "small"\)'):
        compare.compare([str(tmp_path / "d"), str(tmp_path / "e")], tmp_path / "out")
    with pytest.raises(InputError, match="same name"):
        compare.compare([a, a], tmp_path / "out")
    with pytest.raises(InputError, match="no finished evaluation"):
        compare.compare([a, str(tmp_path)], tmp_path / "out")
    compare.compare([a, c], tmp_path / "out", allow_partial=True)


def test_a_run_of_several_panels_is_told_panel_by_panel(tmp_path: Path) -> None:
    unseen = {"digest": "x", "name": "unseen", "split": "", "task_ids": [], "options": {}}
    for arm, after in (("grpo", BEFORE), ("cope", AFTER)):
        for step, successes in ((10, BEFORE), (20, after)):
            folder = tmp_path / arm / "evaluations"
            write_evaluation(folder / f"step_{step:06d}_toy", AFTER, step)
            write_evaluation(folder / f"step_{step:06d}_unseen", successes, step, panel=unseen)
    arms = [str(tmp_path / arm) for arm in ("grpo", "cope")]
    with pytest.raises(InputError, match="evaluated on toy, unseen: say --panel toy"):
        compare.compare(arms, tmp_path / "out")
    with pytest.raises(InputError, match="not evaluated on other, but on toy, unseen"):
        compare.compare(arms, tmp_path / "out", panel="other")
    values = {}
    for panel in ("toy", "unseen"):
        table = compare.compare(arms, tmp_path / "out", panel=panel)
        assert table["panel"] == panel
        values[panel] = table["comparisons"][0]["difference"]["value"]
        headline = str(index(tmp_path / "out" / "comparison.html")["headline"])
        assert headline.startswith(
            "No arm differs from grpo beyond chance" if panel == "toy" else "cope solves most: 75"
        )
    assert values == {"toy": 0.0, "unseen": pytest.approx(0.5)}
    found = index(report(tmp_path / "cope"))
    assert [r["label"] for r in found["runs"]] == [  # type: ignore[attr-defined]
        f"step {step} {panel}" for step in (10, 20) for panel in ("toy", "unseen")
    ]
    assert found["headline"] == "Success 25.0 % → 75.0 % on unseen (24 tasks)"
    assert {(row["a"], row["b"]) for row in found["comparisons"]} == {(0, 2), (1, 3)}  # type: ignore[attr-defined]


def test_curves_leave_out_what_is_no_curve() -> None:
    rows = [
        {"step": 1, "epoch": 0.1, "seconds": 3.0, "reward": 0.0, "kl": 0.0, "loss": None, "grad_norm": float("nan")},
        {"step": 2, "epoch": 0.2, "seconds": 6.0, "reward": 0.0, "kl": 0.0, "loss": 0.5, "train_runtime": 9.0},
        {"step": 2, "loss": 0.25, "note": "text"},
    ]
    assert curves.series(rows) == {"reward": [(1, 0.0), (2, 0.0)], "loss": [(2, 0.25)]}


def test_groups_follow_the_trainers_names() -> None:
    expected = {
        "reward": "Outcome",
        "episodes/success": "Outcome",
        "eval_success": "Outcome",
        "eval_alfworld_valid_seen_success": "Outcome",
        "rewards/success/mean": "Outcome",
        "loss": "Learning",
        "clip_ratio/high_mean": "Learning",
        "forecast/loss": "Forecasting",
        "forecast/gradient_share": "Forecasting",
        "turns/no_action": "Episodes",
        "seconds/rollout": "Seconds",
        "something": "Other",
    }
    assert {name: curves.group_of(name) for name in expected} == expected


def test_paired_table_holds_the_numbers_of_the_statistics(reported: Path) -> None:
    found = index(reported)["comparisons"][0]  # type: ignore[index]
    tasks = [f"t{i}" for i in range(24)]
    by_hand = statistics.paired(
        {task: [float(v)] for task, v in zip(tasks, BEFORE, strict=True)},
        {task: [float(v)] for task, v in zip(tasks, AFTER, strict=True)},
    )
    assert found["p_value"] == by_hand.p_value and found["better"] == by_hand.better
