"""From a recorded page to what can be used on it: role, name and state of every element, in the order of the document.

Nothing here is told which element the recorded action used, so nothing here can give it away.
"""

# lxml is untyped, and in the benchmark's environment only.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lxml import etree

_ROLES = frozenset({
    "button", "checkbox", "combobox", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio", "option",
    "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem",
})  # fmt: skip
_TAGS = {"a": "link", "button": "button", "select": "combobox", "summary": "button", "textarea": "textbox"}
_INPUTS = {
    "button": "button", "checkbox": "checkbox", "file": "file", "image": "button", "number": "spinbutton",
    "radio": "radio", "range": "slider", "reset": "button", "search": "searchbox", "submit": "button",
}  # fmt: skip
_CLICKABLE = {"img": "img", "label": "label", "li": "listitem", "svg": "img"}
_WITHOUT_CONTENT = frozenset({"head", "noscript", "script", "style", "template"})
_FIELDS = frozenset({"combobox", "file", "listbox", "searchbox", "slider", "spinbutton", "textbox"})
_NAME_WORDS, _DETAIL_WORDS, _NEAR_LEVELS = 14, 10, 6
_MOST_CHARS = 120
_OPTIONS_SHOWN = 40
_INVISIBLE_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")


@dataclass(frozen=True)
class Element:
    """One thing on a page that can be used.

    Attributes:
        node: The recording's number of the element, `backend_node_id`; never shown.
        role: ARIA role, or `clickable` for what only reacts to clicks.
        name: What it is called.
        details: State and context, each as it is shown, e.g. `value="Oslo"`.
    """

    node: str
    role: str
    name: str
    details: tuple[str, ...] = ()


def elements(html: str, also: Collection[str] = ()) -> list[Element]:
    """Lists what can be used on a page.

    Args:
        html: `cleaned_html` or `raw_html` as published.
        also: Node numbers to list even if nothing shows that they can be used, as role `element`. For the original's
            mode only: it gives the recorded element away.
    """
    root = _parse(html)
    if root is None:
        return []
    labels = _labels(root)
    found: list[Element] = []
    sources: list[Any] = []
    for source, frame in _visible(root):
        node = source.get("backend_node_id") or ""
        role = _role(source) or ("element" if node and node in also else "")
        if role:
            name = _name(source, role, labels)
            found.append(Element(node, role, name, _details(source, role, name, frame)))
            sources.append(source)
    return _tell_apart(found, sources)


def _parse(html: str) -> Any:
    """Published pages are well-formed XML; anything else is read as a browser would."""
    data = html.encode("utf-8", "replace")
    try:
        return etree.fromstring(data, etree.XMLParser(huge_tree=True, resolve_entities=False, no_network=True))
    except etree.XMLSyntaxError:
        pass
    try:
        return etree.fromstring(data, etree.HTMLParser(huge_tree=True, no_network=True, encoding="utf-8"))
    except etree.XMLSyntaxError:  # nothing at all
        return None


def _visible(root: Any) -> Iterator[tuple[Any, str]]:
    """Yields elements and the title of the frame that each is in; a hidden one hides its content."""
    stack = [(root, "")]
    while stack:
        source, frame = stack.pop()
        tag = _tag(source)
        if tag in _WITHOUT_CONTENT or not tag or _hidden(source):
            continue
        if not _without_size(source):  # its content may stick out
            yield source, frame
        if tag in ("iframe", "frame"):
            frame = _words(_get(source, "title", "aria_label", "name"), _DETAIL_WORDS) or "untitled"
        stack.extend((child, frame) for child in reversed(source))


def _tag(source: Any) -> str:
    return source.tag.rpartition("}")[2].lower() if isinstance(source.tag, str) else ""


def _get(source: Any, *names: str) -> str:
    """Returns the first attribute that says something; published names have underscores for hyphens."""
    for name in names:
        value = source.get(name) or ("_" in name and source.get(name.replace("_", "-"))) or ""
        if value.strip():
            return value
    return ""


def _hidden(source: Any) -> bool:
    return (
        source.get("hidden") not in (None, "false")
        or (_tag(source) == "input" and (source.get("type") or "").lower() == "hidden")
        or bool(_INVISIBLE_STYLE.search(source.get("style") or ""))
    )


def _without_size(source: Any) -> bool:
    box = (source.get("bounding_box_rect") or "").split(",")
    try:
        return len(box) == 4 and (float(box[2]) <= 0 or float(box[3]) <= 0)
    except ValueError:
        return False


def _role(source: Any) -> str:
    """Returns the role of what can be used, else ""."""
    tag = _tag(source)
    if tag == "option":  # part of its list, whose line names it
        return ""
    said = [word for word in _get(source, "role", "aria_role").lower().split() if word in _ROLES]
    if said:
        return said[0]
    if tag == "input":
        return _INPUTS.get((source.get("type") or "").lower(), "textbox")
    if tag in _TAGS:
        return _TAGS[tag]
    if _get(source, "contenteditable").lower() in ("true", "plaintext-only"):
        return "textbox"
    focusable = _get(source, "tabindex").strip().isdigit()
    if _get(source, "is_clickable").lower() == "true" or source.get("onclick") is not None or focusable:
        return _CLICKABLE.get(tag, "clickable")
    return ""


def _labels(root: Any) -> dict[str, str]:
    labels: dict[str, str] = {}
    for source in root.iter("label", "LABEL"):
        target = source.get("for")
        if target and target not in labels:
            labels[target] = _text(source, _NAME_WORDS)
    return labels


def _name(source: Any, role: str, labels: dict[str, str]) -> str:
    if said := _words(_get(source, "aria_label", "label"), _NAME_WORDS):
        return said
    if role in _FIELDS or role in ("checkbox", "radio", "switch"):
        said = labels.get(source.get("id") or "") or _label_around(source)
        said = said or _words(_get(source, "placeholder", "title", "aria_description", "name"), _NAME_WORDS)
        if said or role in _FIELDS:
            return said
    if _tag(source) == "input" and (said := _words(_get(source, "value", "input_value", "alt"), _NAME_WORDS)):
        return said
    said = _text(source, _NAME_WORDS) or _words(_get(source, "title", "alt", "aria_description"), _NAME_WORDS)
    return said or _described_inside(source) or _words(_get(source, "name", "value", "text_value"), _NAME_WORDS)


def _label_around(source: Any) -> str:
    above = source.getparent()
    for _ in range(3):
        if above is None:
            return ""
        if _tag(above) == "label":
            return _text(above, _NAME_WORDS)
        above = above.getparent()
    return ""


def _described_inside(source: Any) -> str:
    """A picture's words, for a link or button that holds nothing else."""
    for inner in source.iterdescendants():
        if isinstance(inner.tag, str) and (said := _get(inner, "aria_label", "alt", "title")):
            return _words(said, _NAME_WORDS)
    return ""


def _details(source: Any, role: str, name: str, frame: str) -> tuple[str, ...]:
    details: list[str] = []
    if role in _FIELDS:
        if _tag(source) == "select":
            details += _choices(source)
        elif value := _words(_get(source, "input_value", "text_value", "value"), _DETAIL_WORDS):
            details.append(f'value="{value}"')
        hint = _words(_get(source, "placeholder"), _DETAIL_WORDS)
        if hint and hint != name:
            details.append(f'placeholder="{hint}"')
    if role in ("checkbox", "radio", "switch", "menuitemcheckbox", "menuitemradio") and _checked(source):
        details.append("checked")
    if frame:
        details.append(f'frame="{frame}"')
    return tuple(details)


def _checked(source: Any) -> bool:
    if _get(source, "input_checked", "aria_checked").lower() in ("true", "checked"):
        return True
    return source.get("checked") not in (None, "false")


def _choices(source: Any) -> list[str]:
    options = [(one, _words(_get(one, "label"), _DETAIL_WORDS) or _text(one, _DETAIL_WORDS)) for one in source.iter()
               if _tag(one) == "option"]  # fmt: skip
    named = [(one, text) for one, text in options if text]
    chosen = [text for one, text in named if _get(one, "option_selected", "selected").lower() in ("true", "selected")]
    shown = [text for _, text in named[:_OPTIONS_SHOWN]]
    details = [f'value="{chosen[0]}"'] if chosen else []
    if shown:
        more = f" | … {len(named) - len(shown)} more" if len(named) > len(shown) else ""
        details.append(f"options: {' | '.join(shown)}{more}")
    return details


def _tell_apart(found: list[Element], sources: list[Any]) -> list[Element]:
    """Adds to elements with the same role and name what stands near each, and its number among them."""
    total = Counter((element.role, element.name) for element in found)
    seen: Counter[tuple[str, str]] = Counter()
    told: list[Element] = []
    for element, source in zip(found, sources):  # noqa: B905 - equal by construction; `strict` needs 3.10
        key = (element.role, element.name)
        if total[key] > 1:
            seen[key] += 1
            near = _near(source, element.name)
            context = (f"nth={seen[key]}", *([f'near="{near}"'] if near else []))
            element = replace(element, details=(*element.details, *context))
        told.append(element)
    return told


def _near(source: Any, name: str) -> str:
    """Returns the text of the closest surroundings that say more than the element itself."""
    above = source.getparent()
    for _ in range(_NEAR_LEVELS):
        if above is None or _tag(above) == "body":
            return ""
        text = _text(above, _DETAIL_WORDS)
        if text and text != name:
            return text
        above = above.getparent()
    return ""


def _text(source: Any, most: int) -> str:
    """Returns the first words inside an element, those of hidden parts and of lists to choose from left out."""
    words: list[str] = []
    stack: list[Any] = [source]
    while stack and len(words) < most:
        part = stack.pop()
        if isinstance(part, str):
            words += part.split()
            continue
        tag = _tag(part)
        if not (tag in _WITHOUT_CONTENT or not tag or (part is not source and (tag == "select" or _hidden(part)))):
            for child in reversed(part):
                stack += [child.tail or "", child]
            stack.append(part.text or "")
    return _words(" ".join(words), most)


def _words(text: str, most: int) -> str:
    """Puts text on one line, without what would look like the end of a name, and not too long."""
    clean = "".join(c if c.isprintable() else " " for c in text).replace('"', "'")
    words = clean.split()
    short = " ".join(words[:most])
    return short if len(short) <= _MOST_CHARS else short[:_MOST_CHARS] + "…"
