"""Equality with the original engine: every recorded token list, ranking, goal, reward and step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from webshop_kit import read

from env_servers.webshop import pages
from env_servers.webshop.analysis import tokenize
from env_servers.webshop.goals import Goal
from env_servers.webshop.reward import reward
from env_servers.webshop.session import Session
from env_servers.webshop.store import Catalogue


def test_searches(official: Catalogue, shared_data: Path) -> None:
    recorded = read(shared_data / "webshop" / "search_oracle.json.gz")
    asins = recorded["asins"]
    assert len(recorded["rows"]) == 2764
    for row in recorded["rows"]:
        assert tokenize(row["q"]) == row["tokens"]
        assert official.search(row["q"]) == [asins[n] for n in row["top"]], row["q"]


def test_prices_and_goals(official: Catalogue, shared_data: Path) -> None:
    prices = read(shared_data / "webshop" / "prices_seed20240.json.gz")
    assert {asin: official.product(asin).price for asin in prices} == prices
    recorded = read(shared_data / "webshop" / "goals_synthetic_seed20240.json.gz")
    goals = official.goals("synthetic")
    assert len(goals) == len(recorded) == 6910
    for goal, wanted in zip(goals, recorded, strict=True):
        assert (goal.asin, goal.text, goal.attributes, goal.options, goal.ceiling, goal.weight) == (
            wanted["asin"],
            wanted["instruction_text"],
            wanted["attributes"],
            wanted["goal_options"],
            wanted["price_upper"],
            wanted["weight"],
        )


def test_rewards(official: Catalogue, shared_data: Path) -> None:
    recorded = read(shared_data / "webshop" / "reward_oracle.json.gz")
    assert len(recorded) == 4405
    for row in recorded:
        wanted = row["goal"]
        goal = Goal("x", wanted["asin"], "", wanted["attributes"], wanted["goal_options"], wanted["price_upper"], "")
        bought = dataclasses.replace(official.product(row["asin"]), price=row["price"])
        got = reward(goal, official.product(goal.asin), bought, row["options"].values())
        assert got == (row["reward"], row["info"]), row


@pytest.mark.parametrize("kind", ["human", "synthetic"])
@pytest.mark.parametrize("rich", [False, True], ids=["text", "text_rich"])
def test_transcripts(official: Catalogue, shared_data: Path, kind: str, rich: bool) -> None:
    steps = 0
    for episode in read(shared_data / "webshop" / f"transcripts_{kind}.json.gz"):
        number = episode["goal_index"]
        session = Session(official, official.goals(kind)[number], f"r{number}" if rich else str(number))
        assert show(session, rich) == episode["reset_rich" if rich else "reset"]
        for step in episode["steps"]:
            session.act(step["action"])
            steps += 1
            assert show(session, rich) == step["obs_rich" if rich else "obs"], step["action"]
            assert (session.reward, session.done) == (step["reward"], step["done"])
            searchable = session.place == "index"
            assert {"has_search_bar": searchable, "clickables": session.clickables()} == step["avail"]
            assert rich or session.url() == step["url"]
    assert steps == {"human": 85, "synthetic": 661}[kind]


def test_a_share_of_the_published_goals_cannot_be_won(official: Catalogue) -> None:
    assert sum(not goal.reachable for goal in official.goals("synthetic")) == 458
    assert all(goal.reachable for goal in official.goals("human"))


def show(session: Session, rich: bool) -> str:
    return pages.rich(session.page(), session.url(), session.visited) if rich else pages.plain(session.page())
