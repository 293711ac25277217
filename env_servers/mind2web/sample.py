"""The sample: our own tasks on made-up websites, in the published format, so that everything works without a download.

They are for trying, testing and developing. A score on them is no Mind2Web score.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from env_servers.mind2web.official import Recording, read
from env_servers.mind2web.sites import SITES, UNSEEN, Site

VERSION = 1
TASKS_A_SITE = 12
TEST_TASKS_A_SITE = 2
UNSEEN_TASKS = 10


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields pairs of split and row; rows look as those of `osunlp/Mind2Web`."""
    for number in range(TASKS_A_SITE):
        for site in SITES:
            yield "sample", _row(site, number)
    for number in range(TASKS_A_SITE, TASKS_A_SITE + TEST_TASKS_A_SITE):
        for site in SITES:
            yield "sample_test", _row(site, number)
    for number in range(UNSEEN_TASKS):
        yield "sample_test", _row(UNSEEN, number)


def recordings() -> Iterator[tuple[str, Recording]]:
    """Yields the same as the store takes it."""
    return ((split, read(row)) for split, row in rows())


def _row(site: Site, number: int) -> dict[str, Any]:
    text, done = site.play(Random(f"{VERSION} {site.name} {number}"))
    return {
        "annotation_id": f"{site.name}-{number}",
        "website": site.name,
        "domain": site.domain,
        "subdomain": site.subdomain,
        "confirmed_task": text,
        "action_reprs": [f"{one.words} -> {one.op}" + (f": {one.value}" if one.value else "") for one in done],
        "actions": [
            {
                "action_uid": f"{site.name}-{number}-{step}",
                "raw_html": one.page,
                "cleaned_html": one.page,
                "operation": {"op": one.op, "original_op": one.op, "value": one.value},
                "pos_candidates": [{"backend_node_id": one.node, "is_original_target": True}],
                "neg_candidates": [],
            }
            for step, one in enumerate(done)
        ],
    }
