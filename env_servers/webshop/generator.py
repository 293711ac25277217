"""A synthetic catalogue in the published format, so that WebShop works with no download.

Product number i depends on the seed and i only: the first thousand products of a large catalogue are those of a small
one, and a catalogue of any size streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

from env_servers.webshop import words
from env_servers.webshop.store import Record

VERSION = 1
_LINES = [(category, line) for category, lines in words.LINES.items() for line in lines]
_CROWD_LIMIT = 30_000  # only the first products have written instructions, as in the published data


def records(count: int, seed: int = 0) -> Iterator[Record]:
    """Yields the products of a catalogue."""
    for number in range(count):
        yield _record(number, Random(f"{VERSION}/{seed}/{number}"))


def nouns(name: str) -> list[str]:
    """Returns the nouns of a name that this module made."""
    found = re.findall(r"[a-z][a-z0-9-]*", name.lower().replace("'s", ""))
    return [word for word in found if word not in words.NOT_NOUNS]


def _record(number: int, rng: Random) -> Record:
    category, line = rng.choice(_LINES)
    traits = rng.sample(line.traits, rng.randint(3, 6))
    brand = "".join(rng.choice(words.SYLLABLES) for _ in range(rng.randint(2, 4))).capitalize()
    material, second = rng.sample(words.MATERIALS, 2)
    fill = {
        "brand": brand,
        "title": line.title,
        "noun": line.title.split()[-1].lower(),
        "style": rng.choice(words.STYLES),
        "material": material,
        "second": second,
        "trait": traits[0],
        "trait_title": traits[0].capitalize(),
        "second_trait": traits[1],
        "occasion": rng.choice(words.OCCASIONS),
        "other": rng.choice(words.OCCASIONS),
        "lot": str(rng.randint(100, 9999)),
        "inches": f"{rng.uniform(2, 90):.1f}",
        "grams": str(rng.randint(20, 20_000)),
        "code": f"{rng.choice('ABCDEFGHKLMN')}{rng.randint(10, 99)}-{rng.randint(100, 999)}",
    }
    options = _options(line, rng)
    raw: dict[str, Any] = {
        "asin": _asin(number),
        "name": _name(fill, traits, rng),
        "full_description": _description(fill, rng),
        "small_description": [text.format(**fill) for text in rng.sample(words.BULLETS, rng.randint(3, 5))],
        "pricing": _pricing(line, rng),
        "images": [f"{_asin(number).lower()}.jpg"],
        "product_category": " › ".join([words.DEPARTMENTS[category], *line.path]),
        "category": category,
        "query": line.query,
        "customization_options": {
            name: [{"asin": None, "value": value} for value in values] for name, values in options.items()
        },
    }
    return Record(raw, _notes(line, traits, rng), _crowd(line, traits, options, rng) if number < _CROWD_LIMIT else [])


def _asin(number: int) -> str:
    """Spells a number as ten characters that look like an id; the step spreads neighbours over the whole range."""
    return f"C{(number * 7_368_787 + 1_299_709) % 10**9:09d}"


def _name(fill: dict[str, str], traits: list[str], rng: Random) -> str:
    name = "{brand} {style} {material} {title}".format(**fill)
    if rng.random() < 0.7:
        name += f" for {rng.choice(words.AUDIENCES)}"
    return f"{name}, {traits[0].title()} {traits[-1].title()}, {fill['code']}"


def _description(fill: dict[str, str], rng: Random) -> str:
    if rng.random() < 0.25:
        return ""
    return " ".join(text.format(**fill) for text in rng.sample(words.SENTENCES, rng.randint(4, 9)))


def _pricing(line: words.Line, rng: Random) -> str:
    low, high = line.price
    price = round(rng.uniform(low, high), 2)
    kind = rng.random()
    if kind < 0.06:
        return ""
    return f"${price}" if kind < 0.9 else f"${price}${round(price * rng.uniform(1.1, 2.0), 2)}"


def _options(line: words.Line, rng: Random) -> dict[str, list[str]]:
    """Chooses values in shop order. Some products are sold in one form only."""
    if rng.random() < 0.4:
        return {}
    chosen: dict[str, list[str]] = {}
    for group in line.options:
        name, values = words.OPTIONS[group]
        kept = set(rng.sample(values, min(len(values), rng.randint(2, 5))))
        chosen[name] = [value for value in values if value in kept]
    return chosen


def _notes(line: words.Line, traits: list[str], rng: Random) -> dict[str, Any]:
    notes: dict[str, Any] = {"attributes": traits}
    if rng.random() < 0.6:
        wanted = rng.sample(traits, rng.randint(1, 3))
        notes["instruction"] = f"Find me {', '.join(wanted)} {line.query}"
        notes["instruction_attributes"] = wanted
    return notes


def _crowd(line: words.Line, traits: list[str], options: dict[str, list[str]], rng: Random) -> list[dict[str, Any]]:
    if rng.random() >= 0.4:
        return []
    wanted = rng.sample(traits, rng.randint(1, 2))
    chosen = [rng.choice(values).replace("/", " | ").lower() for values in options.values() if rng.random() < 0.8]
    text = rng.choice(words.WISHES).format(
        things=line.query, traits=" and ".join(wanted), options=f" in {' and '.join(chosen)}" if chosen else ""
    )
    return [{"instruction": text, "instruction_attributes": wanted, "instruction_options": chosen}]
