"""Fetches WebShop's data from the Hugging Face Hub and lays it out as the published files."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from env_servers.webshop import official

_CEILING = re.compile(r", and price lower than [0-9.]+ dollars$")

Rows = Iterable[Mapping[str, Any]]


class HubError(Exception):
    """The data cannot be fetched; the message says what to do."""


def download(name: str, folder: Path, tell: Callable[[str], None]) -> Path:
    """Fetches `name` (products) and `name_instructions` (crowd goals) and writes the published files.

    Raises:
        HubError: The `data` extra is missing, or the Hub does not give the data.
    """
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingTypeStubs, reportMissingImports, reportUnknownVariableType]
    except ImportError as error:
        raise HubError("the Hub needs the `data` extra: pip install 'cope-gym[data]'") from error
    load: Callable[..., Any] = load_dataset  # pyright: ignore[reportUnknownVariableType]
    tell(f"fetching {name} from the Hub")
    try:
        products: Rows = load(name, split="train")
        goals: Mapping[str, Rows] = load(f"{name}_instructions")
    except (OSError, ValueError, RuntimeError) as error:
        raise HubError(f"the Hub does not give {name}: {error}") from error
    write(folder, products, [row for split in sorted(goals) for row in goals[split]])
    return folder


def write(folder: Path, products: Rows, goals: Rows) -> None:
    """Writes rows of the two data sets as `items_shuffle.json`, `items_ins_v2.json` and `items_human_ins.json`.

    Goals there carry a price ceiling; it is taken off again, because ceilings are drawn when the catalogue is built.
    """
    notes: dict[str, Any] = {}
    with (folder / "items_shuffle.json").open("w", encoding="utf-8") as out:
        out.write("[")
        for number, row in enumerate(products):
            record = official.from_hub_row(row)
            notes[str(record["asin"])] = official.notes_of_hub_row(row)
            out.write(",\n" * bool(number) + json.dumps(record, ensure_ascii=False))
        out.write("]")
    (folder / "items_ins_v2.json").write_text(json.dumps(notes), encoding="utf-8")
    crowd: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in goals:
        goal = {key: official.cell(row.get(key)) for key in ("asin", "instruction_text", "attributes", "goal_options")}
        options: Any = goal["goal_options"]
        crowd[str(goal["asin"])].append(
            {
                "instruction": _CEILING.sub("", str(goal["instruction_text"])),
                "instruction_attributes": goal["attributes"],
                "instruction_options": list(options.values()) if isinstance(options, dict) else options or [],  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            }
        )
    (folder / "items_human_ins.json").write_text(json.dumps(crowd), encoding="utf-8")
