"""The control of forecasting: right prefixes, right format, as many tokens, but the actions of other episodes.

Whatever a policy gains from such targets does not come from forecasting its own future.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from cope_train.objectives.records import Branch


def deranged(branches: Sequence[Sequence[Branch]]) -> list[list[Branch]]:
    """Exchanges the continuations of branches that ask for equally many actions.

    A continuation moves to another trajectory; where one trajectory holds more than half of those that can be
    exchanged, some only move to another turn. No continuation keeps its place, and none is used twice, so that the
    number of tokens stays. One that has nobody to exchange with is left out.

    Args:
        branches: The branches of each trajectory.

    Returns:
        As given, with continuations exchanged; prefixes stay.
    """
    by_length: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, own in enumerate(branches):
        for j, branch in enumerate(own):
            by_length[len(branch.slots)].append((i, j))
    source: dict[tuple[int, int], tuple[int, int]] = {}
    for places in by_length.values():
        # Sorted by trajectory, a rotation by the size of the largest one leaves none where it was.
        shift = max(Counter(i for i, _ in places).values()) % len(places) or 1
        if len(places) > 1:
            source |= {place: places[(n + shift) % len(places)] for n, place in enumerate(places)}
    return [
        [_continued(branch, branches[at[0]][at[1]]) for j, branch in enumerate(own) if (at := source.get((i, j)))]
        for i, own in enumerate(branches)
    ]


def _continued(branch: Branch, other: Branch) -> Branch:
    return replace(other, turn=branch.turn, prefix_end=branch.prefix_end)
