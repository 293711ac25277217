"""The control of forecasting: every target comes from elsewhere, and nothing else changes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cope_gym.errors import InputError
from cope_train.config import CoPEConfig
from cope_train.objectives.placebo import deranged
from cope_train.objectives.records import Branch, Slot


def branch(owner: int, turn: int, k: int) -> Branch:
    """Its first id says whose it is."""
    ids = [owner, turn, *range(k)]
    return Branch(
        turn, 10 * turn, ids, [0, 0] + [1] * k, [1.0] * len(ids), tuple(Slot(0, 0, 0, 0, 0) for _ in range(k))
    )


EPISODES = st.lists(st.lists(st.integers(1, 3), max_size=5), max_size=6)


@given(EPISODES)
def test_every_continuation_moves_and_none_is_lost(lengths: list[list[int]]) -> None:
    given = [[branch(i, j, k) for j, k in enumerate(own)] for i, own in enumerate(lengths)]
    made = deranged(given)
    count = Counter(k for own in lengths for k in own)
    largest = {k: max(own.count(k) for own in lengths) for k in count}
    for i, own in enumerate(made):
        for b in own:
            owner, turn, *_ = b.ids
            k = len(b.slots)
            assert (owner, turn) != (i, b.turn) and b.prefix_end == 10 * b.turn
            assert k == lengths[i][b.turn], "the cue asks for as many actions as follow"
            if 2 * largest[k] <= count[k]:
                assert owner != i
    used = Counter(tuple(b.ids) for own in made for b in own)
    assert used == Counter(tuple(b.ids) for own in given for b in own if count[len(b.slots)] > 1)


def test_the_control_excludes_the_ensemble(tmp_path) -> None:
    with pytest.raises(InputError, match="forecast_derange"):
        CoPEConfig(
            output_dir=str(tmp_path),
            environment="toy",
            forecast=True,
            forecast_derange=True,
            ensemble=True,
            max_steps=1,
            use_cpu=True,
            bf16=False,
        )
