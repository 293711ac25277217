"""The page as a file: self-contained, equal for equal input, no way out for hostile text."""

from __future__ import annotations

import base64
import json
import re
import zlib
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from evaluate_runs import HOSTILE, episode

from cope_gym.evaluate import viewer
from cope_gym.evaluate.viewer import Page, Run


class Parsed(HTMLParser):
    """Tags with their attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts.append((self.tags[-1][1], data))

    def block(self, name: str) -> Any:
        data = next(data for attrs, data in self.scripts if attrs.get("id") == name)
        return json.loads(zlib.decompress(base64.b64decode(data)))


def test_page_is_one_file_that_loads_nothing() -> None:
    text = viewer.render(Page("t", runs=[Run("a", [episode(1, True)])]))
    parsed = Parsed(text)
    for tag, attributes in parsed.tags:
        assert not attributes.keys() & {"src", "href", "srcset", "action", "data"}, (tag, attributes)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML|eval\(|new Function|insertAdjacent", text)
    policy = next(a["content"] for t, a in parsed.tags if t == "meta" and a.get("http-equiv"))
    code = next(data for attrs, data in parsed.scripts if not attrs)
    digest = base64.b64encode(sha256(code.encode()).digest()).decode()
    assert policy and "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


def test_hostile_text_is_data_everywhere() -> None:
    bad = episode(1, False)
    bad.task_id = bad.category = bad.policy = HOSTILE
    bad.messages[2]["content"] = HOSTILE
    bad.turns[0].action, bad.turns[0].action_span = HOSTILE[:5], (0, 5)
    bad.extra = bad.options = {HOSTILE: HOSTILE}
    page = Page(HOSTILE, HOSTILE, HOSTILE, [Run(HOSTILE, [bad])], facts={HOSTILE: HOSTILE})
    text = viewer.render(page)
    assert "owned" not in text.replace("&#x27;owned&#x27;", "")
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.tags].count("img") == 0
    assert parsed.block("block-0")[0]["messages"][2][1] == HOSTILE


def test_equal_input_gives_an_equal_file(tmp_path: Path) -> None:
    pages = [Page("t", runs=[Run("a", [episode(i, i % 2 == 0) for i in range(9)])]) for _ in range(2)]
    one, two = (viewer.write(page, tmp_path / f"{i}.html").read_bytes() for i, page in enumerate(pages))
    assert one == two


def test_every_episode_is_found_where_the_index_says(monkeypatch: Any) -> None:
    monkeypatch.setattr(viewer, "_BLOCK_CHARS", 3000)
    episodes = [episode(i, i % 3 == 0) for i in range(20)]
    parsed = Parsed(viewer.render(Page("t", runs=[Run("a", episodes[:8]), Run("b", episodes[8:])])))
    index = parsed.block("index")["episodes"]
    assert len(set(index["block"])) > 3
    for i, original in enumerate(episodes):
        body = parsed.block(f"block-{index['block'][i]}")[index["offset"][i]]
        assert body["seed"] == original.seed and index["task"][i] == original.task_id
        assert index["run"][i] == int(i >= 8)
        assert viewer.OUTCOMES[index["outcome"][i]] == ("solved" if original.success else "truncated")


def test_spans_are_counted_as_javascript_counts() -> None:
    original = episode(4, True)
    body = Parsed(viewer.render(Page("t", runs=[Run("a", [original])]))).block("block-0")[0]
    for turn, was in zip(body["turns"], original.turns, strict=True):
        units = body["messages"][turn["message"]][1].encode("utf-16-le")
        assert units[2 * turn["span"][0] : 2 * turn["span"][1]].decode("utf-16-le") == was.action


def test_outcomes() -> None:
    lost = episode(1, True)
    lost.error = {"type": "worker_failed", "detail": "x"}
    failed = episode(1, False)
    failed.truncated, failed.terminated = False, True
    assert [viewer.outcome_of(e) for e in (episode(1, True), episode(1, False), failed, lost)] == [
        "solved",
        "truncated",
        "failed",
        "error",
    ]


def test_what_may_not_be_published_in_plain_text_is_left_out() -> None:
    def texts(env: str, split: str, show: bool = False) -> str:
        one = episode(2, True, tokens=True)
        one.env, one.split, one.extra = env, split, {"secret": "x"}
        return json.dumps(
            Parsed(viewer.render(Page("t", runs=[Run("a", [one])], show_protected=show))).block("block-0")
        )

    for env, split in (("appworld", "train"), ("mind2web", "test_task")):
        hidden = texts(env, split)
        assert "Task 2." not in hidden and "Action: go" not in hidden and "secret" not in hidden
        assert "go " not in hidden.replace("not to publish", "") and "left out" in hidden
        assert "Task 2." in texts(env, split, show=True)
    assert "Task 2." in texts("mind2web", "train") and "Task 2." in texts("sciworld", "test")


def test_numbers_that_json_cannot_hold_become_null() -> None:
    odd = episode(1, True, tokens=True)
    odd.score = float("nan")
    assert odd.tokens
    odd.tokens["advantages"][0] = float("inf")
    parsed = Parsed(viewer.render(Page("t", runs=[Run("a", [odd])])))
    assert parsed.block("index")["episodes"]["score"] == [None]
    assert parsed.block("block-0")[0]["tokens"]["advantages"][0] is None


def test_lone_surrogates_survive() -> None:
    odd = episode(1, True)
    odd.messages[2]["content"] = "a\ud800b"
    parsed = Parsed(viewer.render(Page("t", runs=[Run("a", [odd])])))
    assert parsed.block("block-0")[0]["messages"][2][1] == "a\ud800b"
