"""The recorded action cannot be inferred from what an agent is shown."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from mind2web_kit import PAGES, Done, store_of, task_row

from env_servers.mind2web import sample
from env_servers.mind2web.episode import Mind2WebEpisode
from env_servers.mind2web.page import elements
from env_servers.mind2web.snapshot import take
from env_servers.mind2web.store import Store

OPTIONS: dict[str, Any] = {
    "mode": "strict",
    "max_chars": 0,
    "gold_history": False,
    "gold_included": False,
    "show_total_steps": False,
}
EVERYTHING = [str(n) for n in range(1, 60)]


def begin(store: Store, **options: Any) -> Mind2WebEpisode:
    [split] = store.splits()
    [row] = store.tasks(split)
    return Mind2WebEpisode(store, row, {**OPTIONS, **options})


def shown(done: Done, **options: Any) -> str:
    return begin(store_of(task_row("t", done)), **options).first.text


@pytest.mark.parametrize("name", sorted(PAGES))
def test_whatever_is_gold_the_page_is_the_same_to_the_byte(name: str) -> None:
    """Listed, hidden and unusable elements, several of them, and none; in every operation."""
    page = PAGES[name]
    stored: set[bytes] = set()
    texts: set[str] = set()
    infos: set[str] = set()
    for nodes in [[], *([node] for node in EVERYTHING), ["7", "9"]]:
        for op, value in (("CLICK", ""), ("TYPE", "Oslo"), ("SELECT", "Price")):
            store = store_of(task_row("t", (page, nodes, op, value)))
            stored.add(store._database.execute("SELECT page FROM step").fetchone()[0])
            first = begin(store).first
            texts.add(first.text)
            infos.add(str(first.info))
    assert len(stored) == len(texts) == len(infos) == 1


def test_the_originals_mode_gives_it_away_and_says_so_by_its_name() -> None:
    """So that the test above can fail: node 43 is a paragraph, which nothing marks as usable."""
    texts = {shown((PAGES["shop"], [node], "CLICK", ""), gold_included=True) for node in ("7", "43")}
    assert len(texts) == 2
    [revealed] = [text for text in texts if "element" in text]
    assert '- element "Free delivery" [ref=e9]' in revealed


def test_the_mark_on_the_recorded_element_is_not_read() -> None:
    """`raw_html` is used where the cleaned page is empty; it names the action on its very element."""
    plain = PAGES["shop"]
    marked = plain.replace(
        '<button backend_node_id="33"', '<button data_pw_testid_buckeye="uid-0" backend_node_id="33"'
    )
    assert marked != plain
    for cleaned in (plain, "<html/>"):
        texts: set[str] = set()
        for raw in (plain, marked):
            row = task_row("t", (cleaned, ["33"], "CLICK", ""))
            row["actions"][0]["raw_html"] = raw
            texts.add(begin(store_of(row)).first.text)
        assert len(texts) == 1 and "buckeye" not in texts.pop()


def test_which_field_is_used_does_not_depend_on_the_candidates() -> None:
    for nodes in ([], ["33"], ["999"]):
        row = task_row("t", (PAGES["shop"], nodes, "CLICK", ""))
        row["actions"][0]["raw_html"] = PAGES["frames"]
        assert "Search lamps" in begin(store_of(row)).first.text
        assert "raw" not in begin(store_of(row)).first.text


def test_a_classifier_learns_nothing_from_order_references_and_roles() -> None:
    """The recorded element is drawn at random from everything that a page lists; half of the pages are learnt from.

    The same classifier finds it always where the original's mode forces an element into the page.
    """
    rng = Random(7)
    pages = [action["cleaned_html"] for _, row in sample.rows() for action in row["actions"]]
    pages = rng.sample(pages, 240)
    honest = [_example(page, rng, forced=False) for page in pages]
    hits, chance = _accuracy(honest[:120], honest[120:])
    spread = sum(p * (1 - p) for p in chance) ** 0.5
    assert abs(hits - sum(chance)) < 3.5 * spread, (hits, sum(chance), spread)
    revealing = [_example(page, rng, forced=True) for page in pages]
    hits, _ = _accuracy(revealing[:120], revealing[120:])
    assert hits == 120


Example = tuple[list[tuple[str, ...]], int]


def _example(page: str, rng: Random, forced: bool) -> Example:
    """Features of each line, and which line is the recorded one."""
    listed = {element.node for element in elements(page)}
    if forced:  # a node that nothing marks as usable
        others = [number for number in map(str, range(1, 2000)) if f'backend_node_id="{number}"' in page]
        node = rng.choice([number for number in others if number not in listed])
    else:
        node = rng.choice(sorted(listed))
    shown = elements(page, also=[node]) if forced else elements(page)
    refs = list(take(shown, "", 0).shown.items())
    features = [
        (f"position {10 * i // len(refs)}", f"role {element.role}", ref, f"details {len(element.details)}")
        for i, (ref, element) in enumerate(refs)
    ]
    visible = [i for i, (_, element) in enumerate(refs) if element.node == node]
    return features, visible[0] if visible else 0


def _accuracy(train: list[Example], test: list[Example]) -> tuple[int, list[float]]:
    """Picks the line whose features were recorded most often, relative to how often they were seen."""
    seen: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    for features, target in train:
        seen.update(feature for line in features for feature in line)
        gold.update(features[target])
    hits, chance = 0, []
    for features, target in test:
        scores = [sum((gold[f] + 0.1) / (seen[f] + 1) for f in line) for line in features]
        hits += scores.index(max(scores)) == target
        chance.append(1 / len(features))
    return hits, chance


STEPS = [
    (PAGES["shop"], ["33"], "CLICK", ""),
    (PAGES["frames"], ["6"], "TYPE", "4111"),
    (PAGES["roles"], ["8"], "CLICK", ""),
]


def test_earlier_actions_are_the_agents_own() -> None:
    episode = begin(store_of(task_row("t", *STEPS)), mode="teacher_forced")
    text = episode.step("TYPE [e3] [desk lamp]").text
    assert 'Actions so far:\n1. TYPE "desk lamp" searchbox "Search lamps"\n\nPage:\n' in text
    assert "Gold" not in text
    text = episode.step("no action").text
    assert "2. (an action that could not be carried out)" in text and "Gold" not in text


def test_recorded_actions_are_shown_on_request_only() -> None:
    episode = begin(store_of(task_row("t", *STEPS)), mode="teacher_forced", gold_history=True)
    assert "Gold" not in episode.first.text
    text = episode.step("TYPE [e3] [desk lamp]").text
    assert "1. [thing]  Gold 0 -> CLICK: \n" in text and "desk lamp" not in text


def test_the_number_of_steps_is_shown_on_request_only() -> None:
    one, three = (store_of(task_row("t", *STEPS[:n])) for n in (1, 3))
    assert begin(one).first.text == begin(three).first.text
    assert "Steps: 3\n" in begin(three, show_total_steps=True).first.text


def test_a_wrong_action_does_not_tell_the_right_one() -> None:
    for ref in ("e1", "e7", "e99"):
        result = begin(store_of(task_row("t", *STEPS))).step(f"CLICK [{ref}]")
        told = {name: value for name, value in result.info.items() if not isinstance(value, float)} | {
            "step_metrics": 0
        }
        assert "Gold" not in result.text and "33" not in str(told)
    assert (
        begin(store_of(task_row("t", *STEPS))).step("CLICK [e1]").text
        == "That was not what was done. The task has ended."
    )
