"""What is counted as drift, and when the guard trips."""

from __future__ import annotations

import pytest

from cope_train.drift import DriftGuard, in_another_format


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Thought: hm\nAction: open door", False),
        ("open door", False),  # no action at all, which is counted elsewhere
        ("<action>open door</action>", True),
        ('{"name": "open", "arguments": {}}', True),
        ("```python\nprint(1)\n```", True),
    ],
)
def test_another_format(text, expected):
    assert in_another_format(text, "react") is expected


def test_guard_trips_on_growth_not_on_level_or_one_batch():
    steady = DriftGuard(0.1)
    assert all(steady.passes(0.4) for _ in range(20)), "a policy that was always like that does not drift"
    spike = DriftGuard(0.1)
    assert all(spike.passes(x) for x in [0.0, 0.0, 0.0, 0.05, 0.2, 0.04, 0.04])
    drifting = DriftGuard(0.12)
    shares = [0.0, 0.0, 0.0, 0.05, 0.1, 0.15, 0.2, 0.25]
    assert [drifting.passes(x) for x in shares] == [True] * 6 + [False] * 2
    assert drifting.drift == pytest.approx(0.2)


def test_guard_without_a_limit_only_measures():
    guard = DriftGuard(None)
    assert all(guard.passes(x) for x in [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]) and guard.drift == 1.0
