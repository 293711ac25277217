"""The shop's pages as lists of parts, and the two published ways to write them as text."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from env_servers.webshop.products import Product

RESULTS_PER_PAGE = 10
SUB_PAGES = ("description", "features", "reviews", "attributes")


@dataclass(frozen=True)
class Part:
    """A piece of a page.

    Attributes:
        text: What it says.
        kind: `text`, `button`, `option` (a value to choose) or `product` (a link to a product).
    """

    text: str
    kind: str = "text"


Page = list[Part]


def _button(text: str) -> Part:
    return Part(text, "button")


def index(instruction: str) -> Page:
    """The search page."""
    return [Part("WebShop"), Part("Instruction: "), Part(instruction), _button("Search")]


def _header(instruction: str) -> Page:
    return [Part("Instruction:"), Part(instruction), _button("Back to Search")]


def results(instruction: str, number: int, total: int, products: Sequence[Product]) -> Page:
    """One page of search results."""
    page = [*_header(instruction), Part(f"Page {number} (Total results: {total})")]
    page += [_button("< Prev")] * (number > 1) + [_button("Next >")]
    for product in products:
        page += [Part(product.asin, "product"), Part(product.name), Part(product.price_text)]
    return page


def item(instruction: str, product: Product, show_attributes: bool) -> Page:
    """A product's page."""
    page = [*_header(instruction), _button("< Prev")]
    for name, values in product.options.items():
        page += [Part(name), *(Part(value, "option") for value in values)]
    page += [Part(product.name), Part(f"Price: {product.price_text}"), Part("Rating: N.A.")]
    shown = SUB_PAGES if show_attributes else SUB_PAGES[:3]
    return page + [_button(name.capitalize()) for name in shown] + [_button("Buy Now")]


def sub_page(instruction: str, product: Product, name: str) -> Page:
    """One of the pages behind a product's page."""
    content = {
        "description": [product.description],
        "features": [f" {bullet}" for bullet in product.bullets],  # the blank shows in the rich text
        "reviews": [],
        "attributes": [*product.attributes, product.category, product.query, product.product_category],
    }[name]
    return [*_header(instruction), _button("< Prev"), *(Part(text) for text in content)]


def done(product: Product, options: dict[str, str], reward: float) -> Page:
    """The receipt. It names the reward, which is harmless only because the episode is over."""
    chosen = json.dumps(options, sort_keys=True)
    for character in "<>&'":
        chosen = chosen.replace(character, f"\\u{ord(character):04x}")
    lines = [
        "Thank you for shopping with us!",
        "Your code: ",
        "None",
        " (Paste it in your MTurk interface.)",
        "Purchased",
    ]
    lines += ["asin", product.asin, "options", chosen, "attrs", "None", "category", "None", "query", "None"]
    lines += ["product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"]
    lines += ["category", "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)"]
    return [Part(line) for line in [*lines, str(reward), "Reward Details ", "None"]]


def plain(page: Page) -> str:
    """Writes a page as one line of parts, the default observation."""
    return " [SEP] ".join(part.text.strip() for part in _shown(page))


def rich(page: Page, url: str, visited: Collection[str]) -> str:
    """Writes a page with marks for buttons, clicked options and visited products."""
    notes, lines = "", ""
    for part in _shown(page):
        if part.kind == "button":
            lines += _mark(part.text)
        elif part.kind == "option":
            clicked = f'"{part.text}"' in url
            lines += "  " + _mark(part.text, clicked)
            notes = f"You have clicked {part.text}.\n" * clicked + notes
        elif part.kind == "product":
            lines += "\n" + _mark(part.text, part.text in visited)
        else:
            lines += part.text + "\n"
    return notes + lines


def _shown(page: Page) -> Page:
    """Drops what a browser's text view has no node for; a blank that is not a mere newline stays."""
    return [part for part in page if part.text not in ("", "\n")]


def _mark(text: str, clicked: bool = False) -> str:
    name = "clicked button" if clicked else "button"
    return f"[{name}] {text} [{name}_]\n"
