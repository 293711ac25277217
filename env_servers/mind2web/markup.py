"""Builds pages of the sample in the published form: XML with underscored attributes, `<text>` nodes, node numbers.

A page is built first and numbered afterwards; the element that a step uses is known by its `key`, which is taken off
again, so nothing of it is left in the page.
"""

# lxml is untyped, and in the benchmark's environment only.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from lxml import etree

Node = Any


def tag(kind: str, /, *inside: Node | str, key: str = "", **attributes: str) -> Node:
    """Makes an element; texts become `<text>` nodes; trailing underscores of attribute names are dropped."""
    node = etree.Element(kind, {name.rstrip("_"): value for name, value in attributes.items()})
    if key:
        node.set("key", key)
    for part in inside:
        if isinstance(part, str):
            etree.SubElement(node, "text").text = part
        else:
            node.append(part)
    return node


def link(text: str, key: str = "") -> Node:
    """A link."""
    return tag("a", text, key=key, is_clickable="true")


def button(text: str, key: str = "") -> Node:
    """A button."""
    return tag("button", text, key=key, type="button", is_clickable="true")


def field(label: str, name: str, value: str = "", key: str = "") -> Node:
    """A text field with its label before it."""
    filled = {"input_value": value} if value else {}
    return tag(
        "div",
        tag("label", label, for_=name),
        tag("input", key=key, id=name, type="text", placeholder=f"Enter {label.lower()}", **filled),
    )


def choice(label: str, name: str, options: Sequence[str], chosen: str = "", key: str = "") -> Node:
    """A list to choose from."""
    selected = chosen or options[0]
    inside = [tag("option", one, **({"option_selected": "true"} if one == selected else {})) for one in options]
    return tag("div", tag("label", label, for_=name), tag("select", *inside, key=key, id=name, name=name))


def check(label: str, checked: bool = False, key: str = "") -> Node:
    """A box to tick, inside its label."""
    state = {"input_checked": "true"} if checked else {}
    return tag("label", tag("input", key=key, type="checkbox", **state), label)


def row(*parts: Node | str) -> Node:
    """A line of a list of results."""
    return tag("div", *(tag("span", one) if isinstance(one, str) else one for one in parts), class_="row")


def document(rng: Random, title: str, *inside: Node) -> tuple[str, dict[str, str]]:
    """Numbers a page.

    Returns:
        The page, and the node number of each key.
    """
    root = tag("html", tag("body", *inside, aria_label=title))
    keys: dict[str, str] = {}
    number = rng.randrange(20, 900)
    for node in root.iter():
        number += rng.randrange(1, 4)
        node.set("backend_node_id", str(number))
        if (key := node.attrib.pop("key", "")) != "":
            keys[key] = str(number)
    return etree.tostring(root, encoding="unicode"), keys
