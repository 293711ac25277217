"""Scripted policies on the toy environment, and the registry's sentences."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from evaluate_toy import Wanderer, evaluation, walk

from cope_gym.errors import InputError
from cope_gym.evaluate import PolicySpec, Prompt, evaluate, make, policies, register
from cope_gym.evaluate.scripted import Human


def gold(task: str, _options: Mapping[str, Any]) -> list[str]:
    category, number = task.split("/")
    return ["go"] * int(number) * (2 if category == "far" else 1)


def spec(**settings: Any) -> PolicySpec:
    return PolicySpec("", "walk", gold, settings)


def success(name: str, out: Path, **settings: Any) -> float:
    return evaluate(evaluation(), make(name, spec(**settings)), walk, out)["metrics"]["success"]["value"]


def test_gold_solves_everything_and_doing_nothing_solves_nothing(tmp_path: Path) -> None:
    assert success("gold", tmp_path / "gold") == 1.0
    assert success("do-nothing", tmp_path / "idle") == 0.0
    assert 0.0 < success("random", tmp_path / "random") < 1.0


def test_do_nothing_takes_another_idle_action(tmp_path: Path) -> None:
    assert success("do-nothing", tmp_path, action="go") == 1.0


def test_gold_path_that_does_not_solve_ends_without_success(tmp_path: Path) -> None:
    short = PolicySpec("", "walk", lambda _t, _o: [], {})
    result = evaluate(evaluation(), make("gold", short), walk, tmp_path)
    assert result["metrics"]["success"]["value"] == 0.0 and result["metrics"]["turns"]["value"] == 0.0


def test_gold_of_a_benchmark_without_solutions_says_so(tmp_path: Path) -> None:
    none = PolicySpec("", "walk", lambda _t, _o: None, {})
    with pytest.raises(InputError, match=r"walk has no gold solution for (near|far)/\d+\. None of 10 tasks"):
        evaluate(evaluation(concurrency=1), make("gold", none), walk, tmp_path)


def test_random_without_admissible_actions_says_so() -> None:
    with pytest.raises(InputError, match="does not list its admissible actions"):
        make("random", spec()).act([Prompt([], "walk", "near/1", {}, "react", 0, 0, 1)])


def test_a_person_plays_and_gives_up() -> None:
    lines = iter(["  go ", ""])
    screen = io.StringIO()
    human = Human(spec(), source=lambda _: next(lines), screen=screen)
    prompt = Prompt([{"role": "user", "content": "Walk."}], "walk", "near/1", {}, "tag", 0, 0, 1)
    assert human.act([prompt])[0].text == "<action>go</action>"
    assert human.act([prompt])[0].give_up
    assert "Walk." in screen.getvalue()


def test_end_of_file_gives_up() -> None:
    def closed(_: str) -> str:
        raise EOFError

    prompt = Prompt([{"role": "user", "content": "Walk."}], "walk", "near/1", {}, "react", 0, 0, 1)
    assert Human(spec(), source=closed, screen=io.StringIO()).act([prompt])[0].give_up


def test_own_kind_gets_the_model_and_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_factories", dict(policies._factories))
    seen: list[PolicySpec] = []

    def factory(spec: PolicySpec) -> Wanderer:
        seen.append(spec)
        return Wanderer()

    register("mine", factory)
    make("mine:runs/a:b", spec(temperature="0.5"))
    assert seen[0].model == "runs/a:b" and seen[0].settings == {"temperature": "0.5"}
    assert "mine" in policies.kinds()


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("wizard", {}, r"There is no policy 'wizard'; there are do-nothing, gold, "),
        ("gold", {"temperature": "1"}, r"no setting temperature; it takes: none"),
        ("openai", {}, r"openai:MODEL"),
        ("openai:m", {"temperature": "hot"}, r"Setting temperature is a float, not 'hot'"),
        ("openai:m", {"send_seed": "maybe"}, r"Setting send_seed is true or false"),
    ],
)
def test_bad_names_and_settings(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make(name, spec(**settings))
