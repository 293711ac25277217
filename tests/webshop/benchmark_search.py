"""Times search in an index of any size, by default that of the full catalogue: p95 must be at most 25 ms on one core.

Not a test: it takes minutes. The documents are generated products; to spare tokenizing a million of them, a
part of them repeats. Run it in WebShop's environment, from the root:

    python -m tests.webshop.benchmark_search [DOCUMENTS] [DIFFERENT_DOCUMENTS] [QUERIES]
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from env_servers.webshop import bm25, generator, products
from env_servers.webshop.analysis import tokenize


def main(size: int = 1_181_436, different: int = 20_000, queries: int = 300) -> None:
    records = list(generator.records(different))
    texts = [tokenize(products.parse(record.raw, [], [], Random(0)).search_text) for record in records]
    asked = random.Random(0).sample([crowd["instruction"] for record in records for crowd in record.crowd], queries)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        bm25.build(Path(folder), itertools.islice(itertools.cycle(texts), size))
        built = time.process_time() - started
        index = bm25.Index(Path(folder))
        for query in asked[:20]:  # pages of the index come into memory
            index.search(tokenize(query))
        wall, cpu = zip(*(timed(index, query) for query in asked), strict=True)
        megabytes = sum(path.stat().st_size for path in Path(folder).iterdir()) // 2**20
    report = {
        "documents": size,
        "different_documents": different,
        "terms_per_document": round(sum(map(len, texts)) / different, 1),
        "terms_per_query": round(sum(len(tokenize(query)) for query in asked) / queries, 1),
        "index_cpu_s": round(built, 1),
        "index_mb": megabytes,
        "wall_ms": spread(wall),
        "cpu_ms": spread(cpu),  # on a busy machine this is what the search itself costs
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(report, indent=1))


def timed(index: bm25.Index, text: str) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    index.search(tokenize(text))
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


def spread(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    at = {"p50": len(ordered) // 2, "p95": int(len(ordered) * 0.95), "max": len(ordered) - 1}
    return {"mean": round(sum(ordered) / len(ordered), 2), **{name: round(ordered[n], 2) for name, n in at.items()}}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
