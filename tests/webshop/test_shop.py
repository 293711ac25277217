"""The adapter over the generated catalogue: rules, bad input, exploits that are closed, independence of sessions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env_servers.adapter import AdapterError, StepResult
from env_servers.webshop.adapter import WebShopAdapter, WebShopEpisode

DIGEST = "aba38d201749f2ead79cbc49bb666ed4a694020f6ae4ef20ef39942c8c3781b0"
FIRST_TEST_TASK = "synthetic/C242662298/9"
UNREACHABLE = 115


def start(adapter: WebShopAdapter, number: int = 0, split: str = "train", **options: Any) -> WebShopEpisode:
    return adapter.start(adapter.tasks(split)[number].id, None, options)


def play(episode: WebShopEpisode, *actions: str) -> StepResult:
    result = episode.first
    for action in actions:
        result = episode.step(action)
    return result


def reachable_with_options(adapter: WebShopAdapter) -> tuple[str, list[str]]:
    """Returns a task of a product with options, and its gold actions; the options stand between click and purchase."""
    for task in adapter.tasks("train"):
        gold = adapter.gold(task.id, {}) or []
        if len(gold) > 3 and adapter.start(task.id, None, {}).first.info["reachable"]:
            return task.id, gold
    raise AssertionError("the catalogue has no goal with options")


def test_splits_are_published_disjoint_and_named_by_product(adapter: WebShopAdapter) -> None:
    assert adapter.splits() == ["train", "dev", "test", "human"]
    sizes = {split: len(adapter.tasks(split)) for split in adapter.splits()}
    assert sizes["test"] == 500 and sizes["dev"] == 1000 and sizes["train"] > 1500
    ids = [task.id for split in adapter.splits() for task in adapter.tasks(split)]
    assert len(ids) == len(set(ids))
    assert {task.category for task in adapter.tasks("test")} == {
        "beauty",
        "electronics",
        "fashion",
        "garden",
        "grocery",
    }
    with pytest.raises(AdapterError, match="train, dev, test") as caught:
        adapter.tasks("valid")
    assert caught.value.type == "unknown_split"


def test_numbers_of_the_original_are_places_in_the_order(adapter: WebShopAdapter) -> None:
    assert adapter.canonical_id("0") == adapter.canonical_id("agentgym/0") == adapter.tasks("test")[0].id
    assert adapter.canonical_id("1500") == adapter.tasks("train")[0].id
    assert adapter.canonical_id("synthetic/C242662298/9") is None
    with pytest.raises(AdapterError, match="numbered from 0"):
        adapter.canonical_id("99999")


def test_the_catalogue_is_the_same_everywhere(adapter: WebShopAdapter) -> None:
    assert adapter.metadata()["data_digest"] == DIGEST
    assert adapter.tasks("test")[0].id == FIRST_TEST_TASK


def test_gold_searches_what_the_customer_could_type_where_that_is_as_short(adapter: WebShopAdapter) -> None:
    known = 0
    tasks = [task.id for task in adapter.tasks("train")[:40]]
    for task in tasks:
        gold = adapter.gold(task, {}) or []
        page = play(adapter.start(task, None, {}), *gold[:1]).text.lower()
        words = gold[0].removeprefix("search[").removesuffix("]") if gold else ""
        # The page repeats the instruction; a search for the product's name stands only among the results.
        known += bool(words) and words in page.partition("back to search")[0]
    assert 20 < known < len(tasks)


def test_gold_buys_for_one_except_where_no_purchase_can(adapter: WebShopAdapter) -> None:
    sample = random.Random(0)
    for split in adapter.splits():
        tasks = adapter.tasks(split)
        for task in sample.sample(tasks, 60):
            episode = adapter.start(task.id, None, {})
            gold = adapter.gold(task.id, {})
            assert (gold is not None) == episode.first.info["reachable"], task.id
            result = play(episode, *(gold or []))
            assert (result.reward, result.terminated, result.info["success"]) == (
                float(bool(gold)),
                bool(gold),
                bool(gold),
            )
            assert result.info["action_valid"]


def test_unreachable_goals_are_a_known_share(adapter: WebShopAdapter) -> None:
    goals = adapter.metadata()["engine_flags"]["catalogue"]["goals"]
    assert goals["synthetic"]["unreachable"] == UNREACHABLE
    assert goals["human"]["unreachable"] == 0


def test_looking_around_earns_nothing(adapter: WebShopAdapter) -> None:
    episode = start(adapter)
    for action in ("search[shoes]", "click[next >]", "click[< prev]", "click[back to search]"):
        result = episode.step(action)
        assert (result.reward, result.terminated, result.info["score"]) == (0.0, False, 0.0)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "buy now",
        "search",
        "search[]",
        "SEARCH[shoes]",
        "think[hm]",
        "click[search]",
        "click[Buy Now",
        "search[a[b]c]",
    ]
    + ["click[no such button]", "search[a\nb", "click[]"],
)
def test_what_is_no_action_changes_nothing(adapter: WebShopAdapter, action: str) -> None:
    episode = start(adapter)
    result = episode.step(action)
    assert result.text == episode.first.text
    assert (result.reward, result.terminated, result.info["action_valid"]) == (0.0, False, False)
    assert result.info["invalid_action"]


@pytest.mark.parametrize("action", [None, 3, True, ["search[x]"], {"name": "search"}])
def test_what_is_no_text_is_refused(adapter: WebShopAdapter, action: Any) -> None:
    episode = start(adapter)
    with pytest.raises(AdapterError) as caught:
        episode.step(action)
    assert caught.value.type == "bad_action"
    assert play(episode, "search[shoes]").info["page"] == "results"


@pytest.mark.parametrize("query", ["<r>", "<q> running shoes", "<c> beauty", "<a> hand wash", "<c>", "<a>"])
def test_hidden_queries_are_words(adapter: WebShopAdapter, query: str) -> None:
    words = query.replace("<", "").replace(">", "")
    wanted = play(start(adapter), f"search[{words}]").info["available_actions"]
    assert play(start(adapter), f"search[{query}]").info["available_actions"] == wanted


def test_odd_queries(adapter: WebShopAdapter) -> None:
    for query in ("  ", "the of and", "\x00\x01", "\ud800", "x" * 5000, " ".join(f"w{n}" for n in range(3000))):
        result = play(start(adapter), f"search[{query}]")
        assert "Page 1 (Total results: 0)" in result.text and result.info["action_valid"]


def test_next_goes_on_for_ever(adapter: WebShopAdapter) -> None:
    episode = start(adapter)
    page = play(episode, "search[women's leggings]", *["click[next >]"] * 6).text
    assert page.endswith("Page 7 (Total results: 50) [SEP] < Prev [SEP] Next >")


def test_the_last_click_of_an_option_counts(adapter: WebShopAdapter) -> None:
    task, gold = reachable_with_options(adapter)
    episode = adapter.start(task, None, {})
    buttons = play(episode, *gold[:2]).info["available_actions"]["clickables"]
    values = buttons[buttons.index("buy now") + 1 :]
    assert play(episode, *(f"click[{value}]" for value in values), *gold[2:]).reward == 1.0


def test_a_search_forgets_options(adapter: WebShopAdapter) -> None:
    task, gold = reachable_with_options(adapter)
    result = play(adapter.start(task, None, {}), *gold[:-1], "click[< prev]", gold[1], gold[-1])
    assert result.terminated and result.info["reward_parts"]["r_option"] == 0.0 and result.reward < 1


@pytest.mark.parametrize(
    ("task", "options", "kind", "hint"),
    [
        ("synthetic/NOPE/0", {}, "unknown_task", "ids look like"),
        ("../../etc/passwd", {}, "unknown_task", "ids look like"),
        ("7", {}, "unknown_task", "ids look like"),
        (None, {"observation_mode": "html"}, "bad_option", "'text', 'text_rich', 'url'"),
        (None, {"show_attributes": 1}, "bad_option", "False, True"),
        (None, {"previous_actions": 11}, "bad_option", "not 11"),
        (None, {"previous_actions": True}, "bad_option", "not True"),
        (None, {"colour": "red"}, "bad_option", "observation_mode"),
    ],
)
def test_bad_starts(adapter: WebShopAdapter, task: str | None, options: dict[str, Any], kind: str, hint: str) -> None:
    with pytest.raises(AdapterError) as caught:
        adapter.start(task or adapter.tasks("test")[0].id, 0, options)
    assert caught.value.type == kind and hint in caught.value.detail


@pytest.mark.parametrize(
    ("given_settings", "hint"),
    [
        ({"path": "x"}, "catalogue, goals"),
        ({"goals": "all"}, "human or synthetic"),
        ({"catalogue": "../x"}, "no catalogue name"),
    ]
    + [({"catalogue": "official-1000"}, "cope data import webshop")],
)
def test_bad_settings(home: object, given_settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(AdapterError, match=hint) as caught:
        WebShopAdapter(given_settings)
    assert caught.value.type == "bad_option"


def test_observation_options(adapter: WebShopAdapter) -> None:
    assert start(adapter, observation_mode="url").first.text.startswith("http://127.0.0.1:3000/")
    assert "[button] Search [button_]" in start(adapter, observation_mode="text_rich").first.text
    listed = play(start(adapter, list_actions=True), "search[shampoo]").text
    assert listed.splitlines()[-1].startswith("Actions: click[back to search], click[next >], click[c")
    shown = start(adapter, show_attributes=True)
    page = play(shown, "search[shampoo]").info["available_actions"]["clickables"][2]
    assert "Attributes [SEP] Buy Now" in play(shown, f"click[{page}]").text
    assert play(shown, "click[attributes]").info["page"] == "attributes"


def test_history(adapter: WebShopAdapter) -> None:
    plain, told = start(adapter), start(adapter, previous_observations=2, previous_actions=1)
    pages = [plain.first.text, play(plain, "search[tea]").text, play(plain, "click[next >]").text]
    assert told.first.text == pages[0]
    assert play(told, "search[tea]").text == " [SEP] ".join([pages[0], "search[tea]", pages[1]])
    wanted = [pages[0], pages[1], "click[next >]", pages[2]]
    assert play(told, "click[next >]").text == " [SEP] ".join(wanted)


def test_success_as_reward(adapter: WebShopAdapter) -> None:
    task, gold = reachable_with_options(adapter)
    careless = [*gold[:2], gold[-1]]
    scored = play(adapter.start(task, None, {}), *careless)
    strict = play(adapter.start(task, None, {"reward_mode": "success"}), *careless)
    assert 0 < scored.reward < 1 and strict.reward == 0
    assert scored.info["score"] == strict.info["score"] == scored.reward


def test_interleaved_sessions_equal_serial_ones(adapter: WebShopAdapter) -> None:
    tasks = [task.id for task in adapter.tasks("dev")[:12]]
    paths = [adapter.gold(task, {}) or [] for task in tasks]
    serial = [[adapter_step(e, a) for a in path] for e, path in zip(starts(adapter, tasks), paths, strict=True)]
    episodes = starts(adapter, tasks)
    mixed: list[list[tuple[Any, ...]]] = [[] for _ in tasks]
    order = [n for n, path in enumerate(paths) for _ in path]
    random.Random(1).shuffle(order)
    for n in order:
        mixed[n].append(adapter_step(episodes[n], paths[n][len(mixed[n])]))
    assert mixed == serial


def starts(adapter: WebShopAdapter, tasks: list[str]) -> list[WebShopEpisode]:
    return [adapter.start(task, None, {}) for task in tasks]


def adapter_step(episode: WebShopEpisode, action: str) -> tuple[Any, ...]:
    result = episode.step(action)
    return result.text, result.reward, result.terminated, result.info


WORDS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["search[red shoes]", "click[next >]", "click[< prev]", "click[back to search]", "click[buy now]"]
    ),
    st.sampled_from(["click[description]", "click[features]", "click[reviews]"]),
    st.integers(0, 20).map(lambda n: f"#{n}"),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, max_size=25))
def test_any_text_is_answered_and_replays_equally(adapter: WebShopAdapter, actions: list[str]) -> None:
    """`#n` stands for the n-th button of the page, so that the walk gets deep into the shop."""
    one, two = start(adapter, 3, observation_mode="text_rich"), start(adapter, 3, observation_mode="text_rich")
    result = one.first
    for action in actions:
        buttons = result.info["available_actions"]["clickables"]
        number = action[1:]
        if action.startswith("#") and number.isascii() and number.isdigit() and buttons:
            action = f"click[{buttons[int(number) % len(buttons)]}]"
        result, again = one.step(action), two.step(action)
        assert (result.text, result.reward, result.info) == (again.text, again.reward, again.info)
        assert 0 <= result.reward <= 1 and result.terminated == (result.info["page"] == "done")
        assert result.reward == result.info["raw_score"] == result.info["score"]
        if result.terminated:
            break
