"""The parts that need no server: frames, leases, rate limit, idempotency keys, journal files."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import math
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env_servers.bench.load import percentile
from env_servers.errors import RETRYABLE, STATUS, ServiceError, near
from env_servers.front.actions import canonical, parse
from env_servers.front.gate import RateLimit
from env_servers.front.journal import FileJournal
from env_servers.front.keys import Keys
from env_servers.front.leases import Leases
from env_servers.front.server import is_loopback
from env_servers.front.session import Origin, Session, digest, reply_of
from env_servers.front.tombstones import Tombstones
from env_servers.pool import memory
from env_servers.pool.base import WorkerSpec
from env_servers.pool.local import LocalLauncher
from env_servers.worker import framing

ROOT = Path(__file__).parents[2]

texts = st.text(st.characters(exclude_categories=()))  # lone surrogates included
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)

quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@quick
@given(values)
def test_any_value_survives_a_frame_but_for_what_json_cannot_carry(value: Any) -> None:
    frame = framing.encode({"value": value})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame)
        ours.shutdown(socket.SHUT_WR)
        arrived = framing.read(theirs)
        assert framing.read(theirs) is None
    assert arrived == {"value": framing.clean(value)}
    json.dumps(arrived, allow_nan=False, ensure_ascii=False).encode("utf-8")


@quick
@given(values)
def test_cleaning_changes_only_what_it_must(value: Any) -> None:
    cleaned = framing.clean(value)
    assert framing.clean(cleaned) == cleaned
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
    except ValueError:
        return
    assert cleaned == value


@quick
@given(st.lists(values, max_size=4), st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_out_of_pieces_of_any_size(sent: list[Any], sizes: list[int]) -> None:
    stream = b"".join(framing.encode({"value": value}) for value in sent)
    frames, arrived, at = framing.Frames(), list[Any](), 0
    for size in itertools.cycle(sizes):
        if at >= len(stream):
            break
        arrived += frames.feed(stream[at : at + size])
        at += size
    assert arrived == [{"value": framing.clean(value)} for value in sent]


def test_frames_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_FRAME", 100)
    with pytest.raises(framing.FrameError, match="exceeds the limit of 100"):
        framing.encode({"text": "x" * 200})
    with pytest.raises(framing.FrameError, match="exceeds the limit"):
        framing.body_length(framing.HEADER.pack(101))
    with pytest.raises(framing.FrameError, match="not a JSON value"):
        framing.encode({"value": {1, 2}})


def test_a_frame_cut_short_is_the_end_of_the_stream() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(framing.encode({"a": 1})[:-1])
        ours.shutdown(socket.SHUT_WR)
        assert framing.read(theirs) is None


@quick
@given(st.recursive(st.none() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)))
def test_canonical_actions_compare_by_value(value: Any) -> None:
    text = canonical(value, 10**6)
    assert parse(text) == value
    shuffled = json.loads(json.dumps(value), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert canonical(shuffled, 10**6) == text


def test_leases_run_out_in_order_and_only_then() -> None:
    now = 0.0
    leases = Leases(10, lambda: now)
    for name in "abc":
        leases.renew(name)
        now += 1
    leases.renew("a")
    now = 11.5
    assert list(leases.expired()) == ["b"]
    now = 13.0
    assert list(leases.expired()) == ["b", "c", "a"]
    leases.drop("c")
    assert list(leases.expired()) == ["b", "a"]


def test_rate_limit_gives_the_rate_after_a_burst() -> None:
    now = 0.0
    limit = RateLimit(10, lambda: now)
    assert [limit.take("a") for _ in range(20)] == [0.0] * 20
    assert limit.take("a") == pytest.approx(0.1)
    assert limit.take("b") == 0.0
    passed = 0
    for _ in range(1000):
        now += 0.01
        passed += limit.take("a") == 0.0
    assert passed == pytest.approx(100, abs=1)


def test_keys_do_the_work_once_even_for_racing_requests() -> None:
    done: list[int] = []

    async def work() -> dict[str, Any]:
        done.append(1)
        await asyncio.sleep(0.01)
        return {"n": len(done)}

    async def race() -> None:
        keys = Keys()
        replies = await asyncio.gather(*(keys.once("k", {"a": 1}, work) for _ in range(5)))
        assert replies == [{"n": 1}] * 5
        with pytest.raises(ServiceError, match="Idempotency-Key"):
            await keys.once("k", {"a": 2}, work)
        assert await keys.once(None, {"a": 1}, work) == {"n": 2}

    asyncio.run(race())


ORIGIN = Origin("counter", "t/1", "train", "t", 0, {}, 10, {"adapter_version": "1"})


def _reply(index: int) -> dict[str, Any]:
    result = {"text": f"o{index}", "reward": 0.5, "terminated": False, "truncated": False, "info": {"score": 0.1}}
    return reply_of(ORIGIN, index, result)


def _recorded(folder: Path) -> Session:
    session = Session("s" * 32, ORIGIN)
    session.add("", _reply(0), None)
    journal = FileJournal(folder)
    journal.created(session, ("key", "print"))
    for index in (1, 2):
        journal.intent(session, f'"a{index}"')
        journal.turn(session, session.add(f'"a{index}"', _reply(index), {"said": "h\u00e9"}))
    session.epoch = 4
    journal.epoch(session)
    return session


def test_a_journal_gives_the_session_back(tmp_path: Path) -> None:
    session = _recorded(tmp_path)
    ((loaded, key),) = FileJournal(tmp_path).load()
    assert loaded == session and key == ("key", "print")
    FileJournal(tmp_path).removed(session.id)
    assert list(FileJournal(tmp_path).load()) == []


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_journal_cut_anywhere_gives_a_state_that_was(tmp_path: Path, cut: int) -> None:
    session = _recorded(tmp_path)
    (path,) = (tmp_path / "sessions").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: -cut * len(whole) // 100])
    for loaded, _ in FileJournal(tmp_path).load():
        assert loaded.turns == session.turns[: len(loaded.turns)]
        assert loaded.intent in (None, *(turn.action for turn in session.turns[len(loaded.turns) :]))


def test_tombstones_are_bounded_and_outlive_the_process(tmp_path: Path) -> None:
    file = tmp_path / "state" / "ended.jsonl"
    stones = Tombstones(file, kept=10)
    for number in range(35):
        stones.add(f"s{number}", "expired" if number % 2 else "closed")
    assert len(file.read_text().splitlines()) <= 20
    with file.open("a") as handle:
        handle.write('nonsense\n{"session": "cut')
    for known in (stones, Tombstones(file, kept=10)):
        assert [known.reason(f"s{number}") for number in (24, 25, 34)] == [None, "expired", "closed"]
    assert len(file.read_text().splitlines()) == 10


def test_a_damaged_journal_hurts_no_other(tmp_path: Path) -> None:
    session = _recorded(tmp_path)
    (tmp_path / "sessions" / ("x" * 32 + ".jsonl")).write_text("nonsense\n")
    assert [loaded.id for loaded, _ in FileJournal(tmp_path).load()] == [session.id]


def test_journal_takes_no_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a session id"):
        FileJournal(tmp_path).removed("../../etc/passwd")


def test_digest_sees_what_the_client_sees() -> None:
    reply = _reply(1)
    assert digest(reply) == digest({**reply, "info": {**reply["info"], "steps": 9}})
    for change in ({"observation": "x"}, {"reward": 0.6}, {"terminated": True}, {"truncated": True}):
        assert digest({**reply, **change}) != digest(reply)
    assert digest({**reply, "info": {**reply["info"], "score": 0.2}}) != digest(reply)


def _documented() -> dict[str, tuple[int, str]]:
    """Returns status and the words on retrying of every type in the page's table."""
    protocol = (ROOT / "docs" / "protocol.md").read_text()
    found: dict[str, tuple[int, str]] = {}
    for line in protocol[protocol.index("## Errors") :].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[2].isdigit():
            found.update(dict.fromkeys(re.findall(r"`(\w+)`", cells[1]), (int(cells[2]), cells[3])))
    return found


def _raised() -> set[str]:
    """Returns every type that stands in the service's and the adapters' code."""
    found: set[str] = set()
    for path in (ROOT / "env_servers").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("ServiceError", "AdapterError"):
                assert isinstance(node.args[0], ast.Constant | ast.Name | ast.Attribute | ast.Subscript), ast.dump(
                    node
                )
                if isinstance(node.args[0], ast.Constant):
                    found.add(node.args[0].value)
    return found


def test_the_protocol_page_lists_every_error_with_its_status() -> None:
    assert {name: status for name, (status, _) in _documented().items()} == STATUS
    assert _raised() <= set(STATUS)


def test_the_protocol_page_tells_what_can_be_retried() -> None:
    for name, (_, words) in _documented().items():
        own = re.search(rf"{name}: (yes|no)", words)
        expected = own[1] if own else "yes" if words.endswith(": no") else words
        assert expected == ("yes" if name in RETRYABLE else "no"), name


def test_near_names() -> None:
    assert near("bol/0", ["boil/0", "melt/1"]) == " Did you mean boil/0?"
    assert near("zzz", ["boil/0"]) == ""


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_percentile_is_the_nearest_rank() -> None:
    assert [percentile([3, 1, 2, 4], share) for share in (0.0, 0.25, 0.5, 0.51, 1.0)] == [1, 1, 2, 3, 4]
    assert math.isnan(percentile([], 0.5))


def test_a_journal_on_a_failing_disk_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = _recorded(tmp_path)
    journal = FileJournal(tmp_path)
    monkeypatch.setattr("os.write", lambda handle, data: len(data) // 2)
    journal.intent(session, '"half"')
    journal.turn(session, session.add('"half"', _reply(3), None))
    assert list(journal.load()) == []


def test_memory_is_looked_at_while_workers_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has no process id until it runs: one that got its own during a look ended the watch for good."""

    async def look() -> None:
        launcher = LocalLauncher()
        up, coming = (launcher.make(WorkerSpec("none", "python", "none:none"), 0) for _ in range(2))
        up.pid = 4321

        def sizes() -> dict[int, int]:
            coming.pid = 1234
            return {4321: 10, 1234: 20}

        monkeypatch.setattr(memory, "group_rss", sizes)
        await launcher.look([up, coming])
        assert (up.rss, coming.rss) == (10, 0)
        await launcher.look([up, coming])
        assert (up.rss, coming.rss) == (10, 20)

    asyncio.run(look())
