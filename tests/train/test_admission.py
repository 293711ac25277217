"""When turns join those that vLLM is sampling. The engine itself: tests/gpu/rollout_speed.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cope_train.rollout.vllm import Admission

pytestmark = pytest.mark.train

Arrivals = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 64)), max_size=60)


@given(Arrivals, st.integers(1, 10))
def test_nobody_waits_longer_than_the_steps(arrivals: list[tuple[int, int]], steps: int) -> None:
    admission = Admission(steps)
    waiting = waited = 0
    for new, running in arrivals:
        waiting += new
        if admission.due(waiting, running):
            waiting = waited = 0
        elif waiting:
            waited += 1
        assert waited < steps


def test_an_idle_engine_and_a_sparse_arrival_wait_for_nothing() -> None:
    admission = Admission(8, 0.125)
    assert admission.due(1, 0)
    assert [admission.due(0, 64) for _ in range(8)] == [False] * 8
    assert admission.due(1, 64)  # nobody had joined for eight steps


def test_with_many_running_few_join_at_a_time_and_many_at_once() -> None:
    admission = Admission(8, 0.125)
    admission.due(128, 0)
    joined = [admission.due(waiting, 128) for waiting in (2, 4, 6, 8, 10, 12, 14)]
    assert joined == [False] * 7
    assert admission.due(16, 128)
    assert admission.due(16, 128) and not admission.due(15, 128)
