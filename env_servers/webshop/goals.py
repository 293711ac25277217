"""Shopping goals: crowd-written ones, and ones made from a product's attributes and options.

The order of goals is the published one (shuffled with seed 233), which is what the splits count by. A goal's id names
its product and its number among that product's goals, so it is the same in every subset of the catalogue.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from env_servers.webshop.products import Product

SHUFFLE_SEED = 233
NO_LIMIT = 1000000
_CEILINGS = range(10, 1000, 10)

Options = list[str] | dict[str, str]


@dataclass(frozen=True)
class Goal:
    """What the customer wants.

    Attributes:
        id: `human/<asin>/<n>` or `synthetic/<asin>/<n>`.
        asin: The product that the instruction was written for.
        text: The instruction.
        attributes: Wanted attributes.
        options: Wanted option values; a list of values for crowd goals, name → value for synthetic ones.
        ceiling: Highest acceptable price.
        category: Department of the product.
        weight: Sampling weight of the original; uniform sampling ignores it.
        reachable: Whether some purchase of `asin` scores 1.0 under the published reward.
    """

    id: str
    asin: str
    text: str
    attributes: list[str]
    options: Options
    ceiling: float
    category: str
    weight: float = 1.0
    reachable: bool = True

    def as_json(self) -> dict[str, Any]:
        """Returns the fields, ready for `Goal(**fields)`."""
        return dict(vars(self))

    @property
    def kind(self) -> str:
        """`human` or `synthetic`."""
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class Source:
    """What goals of one product are made from.

    Attributes:
        product: The product.
        crowd: Crowd records: `instruction`, `instruction_attributes`, `instruction_options`.
        instruction: Text of the synthetic instruction, "" for none.
        attributes: Attributes of the synthetic instruction.
    """

    product: Product
    crowd: Sequence[Mapping[str, Any]]
    instruction: str
    attributes: list[str]


def human_goals(sources: Iterable[Source], rng: Random) -> list[Goal]:
    """Builds the crowd goals in published order; `rng` draws the price ceilings."""
    return _shuffled(goal for source in sources for goal in _crowd(source, rng))


def synthetic_goals(sources: Iterable[Source], rng: Random) -> list[Goal]:
    """Builds one goal for every combination of a product's options, in published order."""
    goals = [goal for source in sources if source.instruction for goal in _combinations(source, rng)]
    counts = Counter(attribute for goal in goals for attribute in goal.attributes)
    return _shuffled(replace(goal, weight=_weight(goal.attributes, counts)) for goal in goals)


def _crowd(source: Source, rng: Random) -> Iterator[Goal]:
    records = [record for record in source.crowd if record["instruction_attributes"]]
    for number, record in enumerate(records):
        ceiling, suffix = _ceiling(source.product.price, rng)
        yield Goal(
            id=f"human/{source.product.asin}/{number}",
            asin=source.product.asin,
            text=record["instruction"].strip(".") + suffix,
            attributes=list(record["instruction_attributes"]),
            options=list(record["instruction_options"]),
            ceiling=ceiling,
            category=source.product.category,
        )


def _combinations(source: Source, rng: Random) -> Iterator[Goal]:
    names = sorted(source.product.options)
    ceiling, suffix = _ceiling(source.product.price, rng)
    for number, values in enumerate(itertools.product(*(source.product.options[name] for name in names))):
        options = dict(zip(names, values, strict=True))
        wanted = ", and ".join(f"{name}: {value}" for name, value in options.items())
        yield Goal(
            id=f"synthetic/{source.product.asin}/{number}",
            asin=source.product.asin,
            text=source.instruction + (f" with {wanted}" if wanted else "") + suffix,
            attributes=source.attributes,
            options=options,
            ceiling=ceiling,
            category=source.product.category,
        )


def _ceiling(price: float, rng: Random) -> tuple[float, str]:
    """Draws a price ceiling and how the instruction words it."""
    candidates = [float(c) for c in _CEILINGS if c > price][:4]
    if len(candidates) < 2:
        return NO_LIMIT, ""
    ceiling = max(rng.sample(candidates, 2))
    return ceiling, f", and price lower than {ceiling:.2f} dollars"


def _weight(attributes: list[str], counts: Mapping[str, int]) -> float:
    """Means the inverse frequencies; a plain loop, because `sum` adds floats differently from Python 3.12 on."""
    total = 0.0
    for attribute in attributes:
        total += 1.0 / counts[attribute]
    return total / len(attributes)


def _shuffled(goals: Iterable[Goal]) -> list[Goal]:
    ordered = list(goals)
    Random(SHUFFLE_SEED).shuffle(ordered)
    return ordered
