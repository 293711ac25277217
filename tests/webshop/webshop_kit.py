"""Reads the recorded original, and builds the catalogue that it ran on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from env_servers.webshop import official, store
from env_servers.webshop.prepare import noun_lists

RECORDED_SEED = 20240


def read(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return json.load(file)


def build_official(data: Path, target: Path) -> Path:
    notes, crowd = read(data / "items_ins_v2_1000.json"), read(data / "items_human_ins_1000.json")
    records = (
        store.Record(raw, notes.get(raw["asin"], {}), crowd.get(raw["asin"], []))
        for raw in official.read_array(data / "items_shuffle_1000.json")
    )
    nouns = noun_lists(data / "title_nouns_en_core_web_sm_3.6.0.json.gz")
    store.build(target, records, nouns, seed=RECORDED_SEED, strict=True)
    return target
