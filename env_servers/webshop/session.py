"""One visit to the shop: pages, buttons, the basket and the purchase."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from env_servers.webshop import pages
from env_servers.webshop.goals import Goal
from env_servers.webshop.products import Product
from env_servers.webshop.reward import reward
from env_servers.webshop.store import Catalogue

HOST = "http://127.0.0.1:3000"
_ACTION = re.compile(r"(.+)\[(.+)\]")


@dataclass
class Session:
    """A customer's visit.

    Args:
        catalogue: The shop, shared by all visits.
        goal: What the customer wants.
        name: What URLs call this visit.
        show_attributes: Whether a product's page has the Attributes button.
    """

    catalogue: Catalogue
    goal: Goal
    name: str
    show_attributes: bool = False
    place: str = "index"
    keywords: list[str] = field(default_factory=list[str])
    number: int = 1
    product: Product | None = None
    options: dict[str, str] = field(default_factory=dict[str, str])
    visited: set[str] = field(default_factory=set[str])
    hits: list[str] = field(default_factory=list[str])
    reward: float = 0.0
    parts: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def done(self) -> bool:
        """Whether something was bought."""
        return self.place == "done"

    def act(self, action: str) -> str:
        """Executes an action.

        Returns:
            "" or why nothing happened. The page is then as it was.
        """
        match = _ACTION.match(action)
        if match is None:
            return "an action is search[words] or click[button]"
        name, argument = match[1], match[2].lower()
        if name == "search":
            self._search(argument)
            return ""
        if name != "click":
            return f"there is no action {name!r}; actions are search[words] and click[button]"
        button = self.buttons().get(argument)
        if button is None:
            return f"there is no button {argument!r} on this page"
        button()
        return ""

    def buttons(self) -> dict[str, Callable[[], None]]:
        """Returns what can be clicked, in page order. The search button only takes `search[...]`."""
        if self.place in ("index", "done"):
            return {}
        buttons: dict[str, Callable[[], None]] = {"back to search": self._back_to_search}
        if self.place == "results":
            return {**buttons, **self._result_buttons()}
        buttons["< prev"] = self._search_again if self.place == "item" else self._back_to_item
        return {**buttons, **self._item_buttons()} if self.place == "item" else buttons

    def clickables(self) -> list[str]:
        """Returns the names of the buttons as the original lists them."""
        return ["search"] if self.place == "index" else list(self.buttons())

    def page(self) -> pages.Page:
        """Returns the current page."""
        text = self.goal.text
        if self.place == "index":
            return pages.index(text)
        if self.place == "results":
            return pages.results(text, self.number, len(self.hits), [self.catalogue.product(a) for a in self._shown()])
        product = self._product()
        if self.place == "item":
            return pages.item(text, product, self.show_attributes)
        if self.place == "done":
            return pages.done(product, self.options, self.reward)
        return pages.sub_page(text, product, self.place)

    def url(self) -> str:
        """Returns the address that the original shows for this page."""
        query = "+".join(self.keywords)
        if self.place == "index":
            return f"{HOST}/{self.name}"
        if self.place == "results":
            return f"{HOST}/search_results/{self.name}/{query}/{self.number}"
        asin = self._product().asin
        if self.place == "item":
            return f"{HOST}/item_page/{self.name}/{asin}/{query}/{self.number}/{json.dumps(self.options)}"
        if self.place == "done":
            return f"{HOST}/done/{self.name}/{asin}/{self.options!r}"
        place = self.place.capitalize()
        return f"{HOST}/item_sub_page/{self.name}/{asin}/{query}/{self.number}/{place}/{self.options!r}"

    def _product(self) -> Product:
        if self.product is None:
            raise RuntimeError(f"the page {self.place} needs a product")
        return self.product

    def _shown(self) -> list[str]:
        first = (self.number - 1) * pages.RESULTS_PER_PAGE
        return self.hits[first : first + pages.RESULTS_PER_PAGE]

    def _result_buttons(self) -> dict[str, Callable[[], None]]:
        buttons: dict[str, Callable[[], None]] = {}
        if self.number > 1:
            buttons["< prev"] = lambda: self._turn(-1)
        buttons["next >"] = lambda: self._turn(1)
        for asin in self._shown():
            buttons[asin.lower()] = lambda asin=asin: self._open(asin)
        return buttons

    def _item_buttons(self) -> dict[str, Callable[[], None]]:
        shown = pages.SUB_PAGES if self.show_attributes else pages.SUB_PAGES[:3]
        buttons: dict[str, Callable[[], None]] = {name: lambda name=name: self._go(name) for name in shown}
        buttons["buy now"] = self._buy
        fixed = {"back to search", "< prev", *buttons}
        for name, value in self._choices():
            if value not in fixed:
                buttons[value] = lambda name=name, value=value: self._choose(name, value)
        return buttons

    def _choices(self) -> list[tuple[str, str]]:
        return [(name, value) for name, values in self._product().options.items() for value in values]

    def _search(self, words: str) -> None:
        self.keywords = words.split(" ")
        self.number = 1
        self._search_again()

    def _search_again(self) -> None:
        self.hits = self.catalogue.search(" ".join(self.keywords))
        self.options, self.product, self.place = {}, None, "results"

    def _turn(self, pages_on: int) -> None:
        self.number += pages_on
        self._search_again()

    def _back_to_search(self) -> None:
        self.keywords, self.number, self.hits = [], 1, []
        self.options, self.product, self.visited, self.place = {}, None, set(), "index"

    def _open(self, asin: str) -> None:
        self.product, self.place = self.catalogue.product(asin), "item"
        self.visited.add(asin)

    def _back_to_item(self) -> None:
        self.place = "item"

    def _go(self, place: str) -> None:
        self.place = place

    def _choose(self, name: str, value: str) -> None:
        self.options = {**self.options, name: value}

    def _buy(self) -> None:
        target = self.catalogue.product(self.goal.asin)
        self.reward, self.parts = reward(self.goal, target, self._product(), self.options.values())
        self.place = "done"
