"""The published reward, equal to the original to the last bit."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any

from rapidfuzz import fuzz

from env_servers.webshop.goals import Goal
from env_servers.webshop.products import Product

_SIMILAR = 85
# In order of priority: the first word that an option contains stands for the whole option.
_COLOURS = tuple(
    colour
    for line in """
        alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown
        burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac
        copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite
        grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light
        lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy
        nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell
        silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
        wheat white wine yellow
    """.splitlines()
    for colour in line.split()
)

Wanted = str | tuple[str, str]


def reward(goal: Goal, target: Product, bought: Product, selected: Iterable[str]) -> tuple[float, dict[str, Any]]:
    """Scores a purchase.

    Args:
        goal: What was asked for.
        target: The product of the goal.
        bought: The product that was bought.
        selected: The option values that were clicked.

    Returns:
        The reward in [0, 1] and its parts, under the original's names.
    """
    kind, info = _type_match(target, bought)
    attributes = _attribute_matches(goal.attributes, bought)
    wanted = wanted_options(goal)
    options = len(_covered(wanted, selected))
    affordable = bought.price <= goal.ceiling
    parts = len(goal.attributes) + len(wanted) + 1
    info.update(
        r_att=attributes / len(goal.attributes),
        w_att=len(goal.attributes) / parts,
        r_price=affordable,
        w_price=1 / parts,
    )
    if wanted:
        info.update(r_option=options / len(wanted), w_option=len(wanted) / parts)
    return (attributes + options + affordable) / parts * kind, info


def wanted_options(goal: Goal) -> list[Wanted]:
    """Returns the wanted options as the original compares them: values, or pairs of name and value."""
    return list(goal.options.items()) if isinstance(goal.options, dict) else list(goal.options)


def best_selection(goal: Goal, target: Product) -> tuple[dict[str, str], bool]:
    """Finds the option values of the goal's own product that cover most of the goal.

    Returns:
        Option name → value, the goal's own values where they do, and whether that purchase scores 1.0.
    """
    wanted = wanted_options(goal)
    own = _own_selection(goal, target)
    selection = own if len(_covered(wanted, own.values())) == len(wanted) else _widest(wanted, target)
    return selection, reward(goal, target, target, selection.values())[0] == 1.0


def _own_selection(goal: Goal, target: Product) -> dict[str, str]:
    if isinstance(goal.options, dict):
        return dict(goal.options)
    return {name: value for name, values in target.options.items() for value in values if value in goal.options}


def _widest(wanted: list[Wanted], target: Product) -> dict[str, str]:
    """Tries every distinct coverage of every option group; one value per coverage is enough."""
    groups: list[list[tuple[str, str, set[int]]]] = []
    for name, values in target.options.items():
        seen: dict[frozenset[int], str] = {}
        for value in values:
            seen.setdefault(frozenset(_covered(wanted, [value])), value)
        groups.append([(name, value, set(cover)) for cover, value in seen.items()])
    best = max(itertools.product(*groups), key=lambda choice: len(set[int]().union(*(c[2] for c in choice))))
    return {name: value for name, value, cover in best if cover}


def _covered(wanted: list[Wanted], selected: Iterable[str]) -> set[int]:
    values = [_colour(value) for value in selected]
    return {i for i, want in enumerate(wanted) if any(_similar(v, _text(_colour(want))) for v in values)}


def _text(wanted: Wanted) -> str:
    return wanted if isinstance(wanted, str) else str(wanted)


@functools.lru_cache(maxsize=1024)
def _colour(option: Wanted) -> Wanted:
    """Returns the colour word in a value. For a pair only an element that *is* a colour word counts, as published."""
    return next((colour for colour in _COLOURS if colour in option), option)


def _attribute_matches(attributes: list[str], bought: Product) -> int:
    texts = (bought.name.lower(), " ".join(bought.bullets).lower(), bought.description.lower())
    return sum(
        any(_similar(own, attribute) for own in bought.attributes) or any(attribute in text for text in texts)
        for attribute in attributes
    )


def _type_match(target: Product, bought: Product) -> tuple[float, dict[str, Any]]:
    """Judges whether the bought product is of the wanted kind, by query, category path and nouns of the name."""
    query = bought.query == target.query
    category = len(_path(bought) & _path(target)) >= 2
    nouns = target.nouns
    title = len(set(bought.nouns) & set(nouns)) / len(nouns) if nouns else 0.2
    kind = 1.0 if query or category or title > 0.2 else 0.5
    if title < 0.1:  # also where query and category agree, as published
        kind = 0.0 if title == 0.0 else 0.1
    return kind, {"r_type": kind, "query_match": query, "category_match": category, "title_score": title}


def _path(product: Product) -> set[str]:
    return {part.strip() for part in product.product_category.split("›")}


def _similar(one: Wanted, other: str) -> bool:
    return token_set_ratio(_text(one), other) > _SIMILAR


@functools.lru_cache(maxsize=1024)
def token_set_ratio(one: str, other: str) -> int:
    """Thefuzz 0.19's measure; later releases part words at underscores too, which moves scores over the threshold."""
    left, right = _plain(one), _plain(other)
    return round(fuzz.token_set_ratio(left, right)) if left and right else 0


@functools.lru_cache(maxsize=1024)
def _plain(text: str) -> str:
    kept = re.sub(r"[\u0080-\u00ff]", "", text)
    return re.sub(r"\W", " ", kept).lower().strip()
