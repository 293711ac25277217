"""Sessions of one process behave as if each had it for itself, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import adapter_kit
import pytest
from alfworld_kit import AdapterWorker, generate, seen

pytestmark = pytest.mark.engine

SESSIONS: list[tuple[str, dict[str, Any]]] = [
    ("generated/1", {"admissible_actions": True}),
    ("generated/1", {"command_style": "put", "admissible_actions": True}),
    ("generated/2", {"banner": False}),
    ("generated/5", {"admissible_actions": True}),
    ("generated/0", {}),
    ("generated/1", {"admissible_actions": True}),
]


def script(worker: AdapterWorker, number: int) -> list[str]:
    """Returns different commands for each session, equal tasks included."""
    task_id, options = SESSIONS[number]
    gold = worker.gold(task_id, options)
    return ["look", *gold[: number % 3], "inventory", "nonsense", *gold[number % 3 : -1], "help", "look", "inventory"]


@pytest.fixture(scope="module")
def serial(worker: AdapterWorker) -> list[list[Any]]:
    """Every session played alone."""
    return [worker.play(task, script(worker, n), options) for n, (task, options) in enumerate(SESSIONS)]


def interleaved(worker: AdapterWorker) -> list[list[Any]]:
    """All sessions at once, in an order that changes from turn to turn."""
    shown = [[seen(worker.start(f"i{n}", *session))] for n, session in enumerate(SESSIONS)]
    scripts = [script(worker, n) for n in range(len(SESSIONS))]
    for turn in range(max(map(len, scripts))):
        for place in range(len(SESSIONS)):
            n = (place * 5 + turn) % len(SESSIONS)
            if turn < len(scripts[n]):
                shown[n].append(seen(worker.step(f"i{n}", scripts[n][turn])))
    for n in range(len(SESSIONS)):
        worker.end(f"i{n}")
    return shown


def test_interleaved_sessions_equal_serial_ones(worker: AdapterWorker, serial: list[list[Any]]) -> None:
    assert interleaved(worker) == serial
    # Again, in environment objects that have played other games.
    assert interleaved(worker) == serial
    assert serial[0][0] == serial[5][0] and serial[0] != serial[5]


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_hash_seed_does_not_matter(
    alfworld_python: Path, tmp_path: Path, serial: list[list[Any]], hash_seed: str
) -> None:
    with AdapterWorker(alfworld_python, hash_seed=hash_seed, data=str(tmp_path / "none")) as other:
        chosen = (1, 3)
        assert [other.play(SESSIONS[n][0], script(other, n), SESSIONS[n][1]) for n in chosen] == [
            serial[n] for n in chosen
        ]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_200_resets_do_not_grow(
    alfworld_python: Path, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folders = [made[0] for made in generate(alfworld_python, "0 train", 300, "0")]
    # Bathrooms mostly, for the time that it takes; a kitchen now and then.
    small = [number for number, folder in enumerate(folders) if folder.endswith("-490")]
    assert len(small) > 30
    with adapter_kit.AdapterWorker(alfworld_python, "alfworld", data=str(tmp_path / "none")) as worker:

        def play(count: int) -> None:
            # Resets 35 to 50 and 185 to 200 are of the same games, whose translations are what is kept at both points.
            place = count % 150
            number = 6 * place + 3 if place in (5, 10) or place % 20 == 0 else small[place % len(small)]
            worker.start("s", f"generated/{number % 300}", {"admissible_actions": True})
            worker.step("s", "look")
            worker.end("s")

        adapter_kit.assert_flat(worker, temporary, play)
    assert not [*temporary.iterdir(), *(tmp_path / "home").iterdir()]
