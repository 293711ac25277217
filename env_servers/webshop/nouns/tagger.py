"""Tags product names; runs in an environment with spaCy, apart from everything else of CoPE Gym.

Reads names, one JSON string a line, and stores each with the lower-case tokens that are nouns or proper nouns. The
parser stays in the pipeline: without it one title in a thousand comes out differently.
"""

# pyright: basic, reportMissingImports=false

import importlib.util
import json
import os
import sqlite3
import sys
from pathlib import Path

import spacy

_COMMIT_EVERY = 1000


def main(path: str, model: str) -> None:
    """Stores the lists of all names of standard input that `path` has not yet."""
    spec = importlib.util.find_spec(model)  # found, not imported: the package names its own folder wrongly
    if spec is None or spec.origin is None:
        sys.exit(f"the model package {model} is not installed")
    folder = next(Path(spec.origin).parent.rglob("config.cfg")).parent
    nlp = spacy.load(folder, exclude=["ner", "lemmatizer"])
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS title (name TEXT PRIMARY KEY, nouns TEXT NOT NULL) WITHOUT ROWID")
    known = {row[0] for row in database.execute("SELECT name FROM title")}
    fresh = list(dict.fromkeys(name for name in map(json.loads, sys.stdin) if name not in known))
    workers = min(len(os.sched_getaffinity(0)), 1 + len(fresh) // 5000)
    for number, document in enumerate(nlp.pipe(fresh, n_process=workers, batch_size=100), 1):
        nouns = [token.text.lower() for token in document if token.pos_ in ("NOUN", "PROPN")]
        database.execute("INSERT INTO title VALUES (?, ?)", (document.text, json.dumps(nouns, ensure_ascii=False)))
        if number % _COMMIT_EVERY == 0:
            database.commit()
            print(f"{number} of {len(fresh)} names", flush=True)  # noqa: T201 - the caller shows it
    database.commit()


if __name__ == "__main__":
    main(*sys.argv[1:])
