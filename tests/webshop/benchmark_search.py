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

from env_servers.webshop.analysis import tokenize
from env_servers.webshop.catalogues import open_catalogue


def main(products: int = 1_181_436, queries: int = 300) -> None:
    started = time.perf_counter()
    catalogue = open_catalogue(f"synthetic-{products}")
    ready = time.perf_counter() - started
    goals = random.Random(0).sample(catalogue.goals("human"), queries)
    for goal in goals[:20]:  # pages of the index come into memory
        catalogue.search(goal.text + " warm")
    times: list[float] = []
    for goal in goals:
        started = time.perf_counter()
        catalogue.search(goal.text)
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    report = {
        "products": products,
        "open_or_build_s": round(ready, 2),
        "terms_per_query": round(sum(len(tokenize(goal.text)) for goal in goals) / queries, 1),
        "mean_ms": round(sum(times) / queries, 2),
        "p50_ms": round(times[queries // 2], 2),
        "p95_ms": round(times[int(queries * 0.95)], 2),
        "max_ms": round(times[-1], 2),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
