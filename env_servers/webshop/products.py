"""Product records: from the published JSON to the form that pages, search and reward read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, cast

_DEFAULT_PRICE = 100.0
_MAX_ASIN = 10


class MalformedProduct(ValueError):
    """A record that the original would crash on: no name, or a price without digits."""


@dataclass(frozen=True)
class Product:
    """One product, normalised as the original loader does.

    Attributes:
        asin: Id, at most ten characters.
        name: Title.
        description: Long text, may be empty.
        bullets: The feature list, at least one (maybe empty) entry.
        prices: One price or the two ends of a range, in stored order.
        price: What a purchase costs; drawn once for a range.
        options: Option name → values, in stored order, all lower-case.
        attributes: What the reward compares with the goal's attributes.
        category: Department, e.g. `beauty`.
        product_category: Path of categories, parted by `›`.
        query: The search that found the product when the catalogue was collected.
        nouns: Lower-case nouns of the name, repeats kept.
    """

    asin: str
    name: str
    description: str
    bullets: list[str]
    prices: list[float]
    price: float
    options: dict[str, list[str]]
    attributes: list[str]
    category: str
    product_category: str
    query: str
    nouns: list[str]

    @property
    def price_text(self) -> str:
        """The price as pages show it."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def search_text(self) -> str:
        """What the search engine indexes."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.name, self.description, self.bullets[0], options]).lower()

    def as_json(self) -> dict[str, Any]:
        """Returns the fields, ready for `Product(**fields)`."""
        return dict(vars(self))


def usable_id(record: Mapping[str, Any]) -> bool:
    """Whether the original loader keeps the record: it drops ids that are `nan` or too long."""
    asin = record.get("asin")
    return isinstance(asin, str) and asin.isascii() and 0 < len(asin) <= _MAX_ASIN and asin != "nan"


def parse(record: Mapping[str, Any], attributes: list[str], nouns: list[str], rng: Random) -> Product:
    """Normalises one published record and draws its price where it is a range.

    Raises:
        MalformedProduct: The record has no name or no readable price.
    """
    name = record.get("name")
    if not isinstance(name, str):
        raise MalformedProduct(f"product {record.get('asin')} has no name")
    prices = _prices(record)
    return Product(
        asin=record["asin"],
        name=name,
        description=_text(record.get("full_description")),
        bullets=_bullets(record.get("small_description")),
        prices=prices,
        price=prices[0] if len(prices) == 1 else rng.uniform(*prices),
        options=_options(record.get("customization_options")),
        attributes=attributes or ["DUMMY_ATTR"],
        category=_text(record.get("category")),
        product_category=_text(record.get("product_category")),
        query=_text(record.get("query")).lower().strip(),
        nouns=nouns,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _bullets(value: Any) -> list[str]:
    bullets = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [_text(bullet) for bullet in bullets] or [""]


def _prices(record: Mapping[str, Any]) -> list[float]:
    text = record.get("pricing")
    if not text:
        return [_DEFAULT_PRICE]
    parts = [re.sub(r"[^0-9.]", "", part) for part in str(text).split("$")[1:]]
    try:
        prices = [float(part) for part in parts]
    except ValueError:
        raise MalformedProduct(f"product {record.get('asin')} has a price without digits: {text!r}") from None
    if not prices:
        raise MalformedProduct(f"product {record.get('asin')} has a price without a dollar sign: {text!r}")
    return prices[:2]


def _options(groups: Any) -> dict[str, list[str]]:
    if not isinstance(groups, dict):
        return {}
    filled = {name: values for name, values in cast("dict[str, Any]", groups).items() if values}
    return {name.lower(): [_option(value) for value in values] for name, values in filled.items()}


def _option(value: Mapping[str, Any]) -> str:
    return str(value["value"]).strip().replace("/", " | ").lower()
