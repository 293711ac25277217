"""Times search in a catalogue of any size, the full one by default: p95 must be at most 25 ms on one core.

Not a test: the full catalogue takes minutes and some gigabytes. Run it in WebShop's environment, from the root:

    python -m tests.webshop.benchmark_search [NUMBER_OF_PRODUCTS] [NUMBER_OF_QUERIES]
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Sequence

from env_servers.webshop.analysis import tokenize
from env_servers.webshop.catalogues import open_catalogue
from env_servers.webshop.store import Catalogue


def main(products: int = 1_181_436, queries: int = 300) -> None:
    started = time.perf_counter()
    catalogue = open_catalogue(f"synthetic-{products}")
    ready = time.perf_counter() - started
    goals = random.Random(0).sample(catalogue.goals("human"), queries)
    for goal in goals[:20]:  # pages of the index come into memory
        catalogue.search(goal.text + " warm")
    wall, cpu = zip(*sorted(timed(catalogue, goal.text) for goal in goals), strict=True)
    report = {
        "products": products,
        "open_or_build_s": round(ready, 2),
        "terms_per_query": round(sum(len(tokenize(goal.text)) for goal in goals) / queries, 1),
        "wall_ms": spread(wall),
        "cpu_ms": spread(cpu),  # on a busy machine this is what the search itself costs
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(report, indent=1))


def timed(catalogue: Catalogue, text: str) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    catalogue.search(text)
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


def spread(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    at = {"p50": len(ordered) // 2, "p95": int(len(ordered) * 0.95), "max": len(ordered) - 1}
    return {"mean": round(sum(ordered) / len(ordered), 2), **{name: round(ordered[n], 2) for name, n in at.items()}}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
