"""The page in a real headless browser: it draws, filters, searches, compares, and runs no foreign script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import requests
from evaluate_browser import Browser, chromium
from evaluate_runs import HOSTILE, episode, write_run

from cope_gym.evaluate import viewer
from cope_gym.evaluate.report import report
from cope_gym.evaluate.viewer import Page, Run

BEFORE = [i % 4 == 0 for i in range(24)]
AFTER = [i % 4 != 1 for i in range(24)]
READY = "performance.getEntriesByName('searchable').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("quickstart")
    write_run(run, BEFORE, AFTER)
    return report(run)


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.open(page)
    browser.until(READY)
    return browser


def complaints(browser: Browser) -> list[Any]:
    return requests.post(f"{browser.session}/se/log", json={"type": "browser"}, timeout=10).json()["value"]


def test_overview(opened: Browser, tmp_path: Path) -> None:
    assert opened.texts(".headline") == ["Success 25.0 % → 75.0 % on toy (24 tasks)"]
    assert any("step 30" in text and "75.0 %" in text for text in opened.texts("tbody tr"))
    assert opened.run("return document.querySelectorAll('.chart path').length") >= 3
    opened.click(".fold")
    assert any(text.startswith("boil") for text in opened.texts("tr.sub"))
    opened.screenshot(tmp_path / "overview.png")
    assert (tmp_path / "overview.png").stat().st_size > 20_000
    assert complaints(opened) == []


def test_filters_and_search(opened: Browser) -> None:
    opened.press("2")
    assert opened.texts("#tally") == ["60 of 60 episodes"]
    opened.click("#outcomes .chip", "solved")
    assert opened.texts("#tally") == [f"{sum(BEFORE) + sum(AFTER) + 6} of 60 episodes"]
    opened.run("const s = document.getElementById('by-run'); s.value = 0; s.dispatchEvent(new Event('change'))")
    assert opened.texts("#tally") == [f"{sum(BEFORE)} of 60 episodes"]
    opened.press("x")
    opened.press("/")
    opened.press("Task 7.")
    assert opened.texts("#tally") == ["2 of 60 episodes"], "a text that stands only inside two episodes"
    assert set(opened.texts(".item .task")) == {"find-plant/2"}


def test_reading_with_the_keyboard(opened: Browser) -> None:
    opened.press("2")
    opened.until("document.querySelector('#pane h2')?.textContent === 'boil/0'")
    roles = opened.texts("#pane .who strong")
    assert roles[:4] == ["System", "Environment", "Agent", "Environment"]
    assert all(text.startswith("go ") for text in opened.texts("#pane mark.act")), "the action, emoji before it or not"
    opened.press("j")
    opened.until("document.querySelector('#pane h2')?.textContent === 'find-plant/0'")
    opened.press("c")
    opened.until("document.querySelectorAll('#pane .colhead').length === 2")
    assert [text.split("#")[0].strip("✓◐✕! ") for text in opened.texts("#pane .colhead")] == ["step 0", "step 30"]
    opened.press("k")
    opened.until("document.querySelector('#pane h2')?.textContent === 'boil/0'")
    opened.press("t")
    assert opened.run("return document.documentElement.dataset.theme") in ("dark", "light")
    opened.press("?")
    assert opened.run("return document.querySelector('dialog').open")


def test_token_overlay(opened: Browser, page: Path) -> None:
    opened.open(page, "#episode=50")
    opened.until(READY)
    opened.until("document.querySelector('#layer')")
    opened.press("o")
    opened.until("document.querySelector('.tokens span')")
    painted = opened.run("return [...document.querySelectorAll('.tokens span')].map(e => !!e.style.background)")
    assert painted == [i % 2 == 1 for i in range(len(painted))], "the mask of the made-up record"
    opened.press("o")
    opened.until("document.querySelector('#layer').value === 'advantages'")


def test_hostile_text_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    bad = episode(1, True, tokens=True)
    bad.task_id = bad.category = bad.policy = HOSTILE
    bad.messages[2]["content"] = bad.messages[3]["content"] = HOSTILE
    bad.turns[0].action_span = (0, 5)
    assert bad.tokens
    bad.tokens["text"][0] = HOSTILE
    bad.extra = {"reward_parts": {HOSTILE: HOSTILE}}
    lost = episode(2, True)
    lost.error = {"type": HOSTILE, "detail": HOSTILE}
    shown = Page("fine", HOSTILE, HOSTILE, [Run(HOSTILE, [bad, lost])], facts={HOSTILE: HOSTILE})
    browser.open(viewer.write(shown, tmp_path / "hostile.html"))
    browser.until(READY)
    for keys in ("1", "2", "j", "k", "c", "o", "o", "1"):
        browser.press(keys)
        browser.until("document.body")
    assert browser.run("return document.title") == "fine"
    assert browser.run("return document.querySelectorAll('img, #app script').length") == 0
    assert complaints(browser) == []


@pytest.mark.soak
def test_two_thousand_episodes(browser: Browser, tmp_path: Path) -> None:
    episodes = [episode(i, i % 3 == 0, turns=30, chars=300) for i in range(2000)]
    path = viewer.write(
        Page("big", "Big", runs=[Run("a", episodes[:1000]), Run("b", episodes[1000:])]), tmp_path / "b.html"
    )
    paints: list[float] = []
    for _ in range(3):
        browser.open(path)
        browser.until(READY, 60)
        paints.append(browser.run("return performance.getEntriesByName('painted')[0].startTime"))
    assert min(paints) < 2000, paints
    browser.press("2")
    browser.press("/")
    browser.press("go 12")
    for _ in range(4):
        browser.click("#outcomes .chip", "solved")
    times = browser.run("return performance.getEntriesByName('filter').map(e => e.duration)")
    assert len(times) >= 9 and median(times) < 100, times
    assert browser.run("return document.querySelectorAll('.item').length") < 40, "rows exist only while in view"
    browser.run("document.getElementById('list').scrollTop = 1e6")
    browser.until("document.querySelectorAll('.item').length > 3")
