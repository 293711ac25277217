"""What can be used on a page, and how it is written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mind2web_kit import PAGES

from env_servers.mind2web.page import Element, elements
from env_servers.mind2web.snapshot import EMPTY, take

SHOP = """\
- link "Home" [ref=e1]
- link "Basket, 2 things" [ref=e2]
- searchbox "Search lamps" [ref=e3] value="floor lamp" placeholder="e.g. 'reading'"
- combobox "Sort by" [ref=e4] value="Price" options: Newest | Price
- checkbox "In stock" [ref=e5] checked
- button "Buy" [ref=e6] nth=1 near="Arc lamp 89.00 Buy"
- button "Buy" [ref=e7] nth=2 near="Bow lamp 75.00 Buy"
- clickable "Show more" [ref=e8]"""
FRAMES = """\
- textbox "Card number" [ref=e1] frame="Payment"
- button "Approve" [ref=e2] frame="bank"
- button "Pay" [ref=e3] frame="Payment" nth=1
- button "Pay" [ref=e4] nth=2
- img "Close" [ref=e5]"""
ROLES = """\
- tab "One way" [ref=e1]
- tab "Return" [ref=e2]
- option "Oslo" [ref=e3]
- clickable "Passengers" [ref=e4]
- clickable "Go" [ref=e5]
- textbox "Note" [ref=e6] value="call me"
- radio "Aisle" [ref=e7] checked
- button "Continue" [ref=e8]
- spinbutton "Adults" [ref=e9] value="2"
- file "passport" [ref=e10]
- textbox "Comments" [ref=e11]
- button "Fare rules" [ref=e12]
- img "Seat map" [ref=e13]
- link "" [ref=e14]"""
LOOSE = """\
- textbox "Email" [ref=e1]
- button "Sign up" [ref=e2]
- link "Terms" [ref=e3]
- link "Privacy" [ref=e4]"""


@pytest.mark.parametrize(
    ("name", "expected"), [("shop", SHOP), ("frames", FRAMES), ("roles", ROLES), ("loose", LOOSE)]
)
def test_pages_as_they_are_shown(name: str, expected: str) -> None:
    """Nested frames, hidden parts, lists, duplicates, roles; `loose` is HTML that is no XML."""
    assert take(elements(PAGES[name]), "", 0).text == expected


def test_nodes_are_known_and_never_shown() -> None:
    page = elements(PAGES["shop"])
    assert [element.node for element in page] == ["7", "9", "13", "15", "21", "27", "33", "40"]
    snapshot = take(page, "", 0)
    assert snapshot.shown["e7"].node == "33"
    assert "backend" not in snapshot.text and "33" not in snapshot.text


def test_a_name_stays_on_its_line_and_within_its_quotes() -> None:
    bad = '<html><button aria_label="a&quot; [ref=e9]&#10;- link &#x202e;x"/></html>'
    assert take(elements(bad), "", 0).text == '- button "a\' [ref=e9] - link x" [ref=e1]'


def test_long_names_and_long_lists_are_cut() -> None:
    [button] = elements(f"<html><button><text>{'word ' * 40}</text></button></html>")
    assert button.name.split() == ["word"] * 14
    [button] = elements(f"<html><button><text>{'x' * 4000}</text></button></html>")
    assert len(button.name) == 121
    options = "".join(f"<option><text>Land {n}</text></option>" for n in range(100))
    [listed] = elements(f'<html><select aria_label="Country">{options}</select></html>')
    assert listed.details[0].startswith("options: Land 0 | Land 1 | ") and listed.details[0].endswith("… 60 more")


@pytest.mark.parametrize("html", ["", "   ", "<html/>", "no page", "<html><p>text</p></html>", "\0", "<a", "]]>"])
def test_a_page_with_nothing_on_it(html: str) -> None:
    assert take(elements(html), "", 0).text in (EMPTY, '- link "" [ref=e1]')


def test_entities_are_not_fetched_nor_blown_up() -> None:
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    html = f'<!DOCTYPE html [<!ENTITY e0 "boom"><!ENTITY f SYSTEM "file:///etc/hostname">{bomb}]>'
    page = elements(f"{html}<html><button><text>&e11;&f;</text></button></html>")
    assert all(len(element.name) < 200 for element in page)


def test_deep_pages() -> None:
    deep = "<div>" * 1000 + "<button><text>Down here</text></button>" + "</div>" * 1000
    assert [element.name for element in elements(f"<html>{deep}</html>")] == ["Down here"]


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200), st.sampled_from(sorted(PAGES)), st.integers(0, 2000))
def test_no_text_is_a_fault(junk: str, name: str, at: int) -> None:
    page = elements(PAGES[name][:at] + junk + PAGES[name][at:])
    snapshot = take(page, junk, 0)
    assert list(snapshot.shown) == [f"e{n}" for n in range(1, len(page) + 1)]
    assert len(snapshot.text.split("\n")) == max(len(page), 1)


LONG = [Element(str(n), "link", f"Entry {n}") for n in range(200)] + [Element("x", "button", "Reserve a table")]


def test_what_does_not_fit_is_chosen_by_the_words_of_the_task() -> None:
    snapshot = take(LONG, "Please reserve a table for two", 300)
    lines = snapshot.text.split("\n")
    assert lines[-2:] == ['- button "Reserve a table" [ref=e201]', "(190 elements are not shown)"]
    assert lines[0] == '- link "Entry 0" [ref=e1]'
    assert len("\n".join(lines[:-1])) <= 300
    assert list(snapshot.shown)[-1] == "e201" and "e150" not in snapshot.shown


def test_references_do_not_depend_on_the_limit() -> None:
    whole, part = take(LONG, "table", 0), take(LONG, "table", 500)
    assert {ref: whole.shown[ref] for ref in part.shown} == dict(part.shown)
    assert take(LONG, "table", 10**6).text == whole.text
