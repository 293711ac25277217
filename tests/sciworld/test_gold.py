"""The engine's own solutions win in every task, with `easy`; `cope check sciworld` does the same over HTTP.

The two genetics tasks cost as much as all others together, so each is played in one variation only.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from adapter_kit import AdapterWorker

from env_servers.sciworld import tasks

pytestmark = [pytest.mark.engine, pytest.mark.slow]

EASY = {"simplifications": "easy"}


def lost(python: Path, ids: Sequence[str]) -> list[str]:
    """Plays gold paths in a worker of its own and returns what went wrong."""
    problems: list[str] = []
    with AdapterWorker(python) as worker:
        for task_id in ids:
            reply = worker.start("gold", task_id, EASY)
            total = 0.0
            for action in worker.call("gold", task_id=task_id, options=EASY):
                reply = worker.step("gold", action)
                total += reply["reward"]
                if reply["terminated"]:
                    break
            won = reply["terminated"] and reply["info"]["success"] and reply["info"]["score"] == 1.0
            if not won or abs(total - 1.0) > 1e-9:
                problems.append(f"{task_id}: score {reply['info']['raw_score']}, sum of rewards {total}")
            worker.end("gold")
    return problems


def ends() -> list[str]:
    """The first and the last variation of every task: one of training, one of the test split."""
    ids = [f"{name}/{variation}" for name, count in tasks.VARIATIONS.items() for variation in (0, count - 1)]
    return [
        one for one in ids if one not in ("mendelian-genetics-known-plant/119", "mendelian-genetics-unknown-plant/0")
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["once", "twice"])
def test_gold_paths_win_in_every_task(sciworld_python: Path, both: bool) -> None:
    ids = ends()
    if not both:  # of one task the first variation, of the next the last
        of = {name: [one for one in ids if one.startswith(f"{name}/")] for name in tasks.VARIATIONS}
        ids = [found[number % len(found)] for number, found in enumerate(of.values())]
    assert {one.partition("/")[0] for one in ids} == set(tasks.VARIATIONS)
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(lost, [sciworld_python] * 2, [ids[::2], ids[1::2]])
        assert [problem for half in halves for problem in half] == []
