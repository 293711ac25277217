"""The six made-up websites of the sample. Each turns a random generator into one task with its pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from env_servers.mind2web.markup import Node, button, check, choice, document, field, link, row, tag

_CITIES = ["Lisbon", "Oslo", "Prague", "Dublin", "Vienna", "Porto", "Tallinn", "Geneva", "Krakow", "Bergen"]
_NAMES = ["Ada Winter", "Noor Castel", "Ivo Lind", "Mira Soto", "Teo Brandt", "Lena Okafor"]


@dataclass(frozen=True)
class Done:
    """What is done on a page.

    Attributes:
        page: The page as it is before.
        node: Number of the element.
        op: `CLICK`, `TYPE` or `SELECT`.
        value: Text or option.
        words: The element in the data set's words, e.g. `[button]  Search`.
    """

    page: str
    node: str
    op: str
    value: str
    words: str


@dataclass(frozen=True)
class Site:
    """A website.

    Attributes:
        name: Its name.
        domain: E.g. `Travel`.
        subdomain: E.g. `Airlines`.
        play: Draws a task: its text, and what is done.
    """

    name: str
    domain: str
    subdomain: str
    play: Callable[[Random], tuple[str, list[Done]]]


class _Visit:
    """Collects what is done on a website whose every page has the same frame, in an order of the task's own."""

    def __init__(self, rng: Random, name: str, menu: Sequence[str]) -> None:
        self._rng = rng
        self._name = name
        self._menu = rng.sample(list(menu), len(menu))
        self._above = rng.random() < 0.5
        self.done: list[Done] = []

    def _page(self, inside: Sequence[Node]) -> tuple[str, dict[str, str]]:
        menu = tag("nav", *(link(word) for word in self._menu))
        banner = tag("div", "We use cookies.", button("Accept"), button("Settings"))
        secret = tag("div", button("Skip to the end"), style="display: none")
        main = tag("main", tag("h1", self._name), *inside)
        parts = [menu, banner, secret, main] if self._above else [secret, main, menu, banner]
        return document(self._rng, self._name, *parts)

    def act(self, inside: Sequence[Node], words: str, op: str = "CLICK", value: str = "") -> None:
        """Does something to the element with the key `it`."""
        page, keys = self._page(inside)
        self.done.append(Done(page, keys["it"], op, value, words))


def _mixed(rng: Random, parts: Sequence[Node]) -> list[Node]:
    return rng.sample(list(parts), len(parts))


def _form(rng: Random, visit: _Visit, fields: Sequence[tuple[str, str, Sequence[str]]], submit: str) -> None:
    """Fills in fields one by one, in the task's order, then presses a button.

    Args:
        rng: Places the fields.
        visit: Where to.
        fields: Label, value, and the options of a list to choose from.
        submit: Text of the button.
    """
    order = rng.sample(range(len(fields)), len(fields))

    def page(filled: int, key: str) -> list[Node]:
        parts: list[Node] = []
        for i in order:
            label, value, options = fields[i]
            it, name = "it" if key == label else "", label.lower().replace(" ", "-")
            shown = value if i < filled else ""
            parts.append(choice(label, name, options, shown, it) if options else field(label, name, shown, it))
        return [*parts, button(submit, "it" if key == submit else "")]

    for filled, (label, value, options) in enumerate(fields):
        kind, op = ("combobox", "SELECT") if options else ("textbox", "TYPE")
        visit.act(page(filled, label), f"[{kind}]  {label}", op, value)
    visit.act(page(len(fields), submit), f"[button]  {submit}")


def _flights(rng: Random) -> tuple[str, list[Done]]:
    start, goal = rng.sample(_CITIES, 2)
    cabins = ["Economy", "Premium", "Business"]
    cabin = rng.choice(cabins[1:])
    visit = _Visit(rng, "skyhop", ["Flights", "Check-in", "Baggage", "Status", "Help"])
    _form(rng, visit, [("From", start, ()), ("To", goal, ()), ("Cabin", cabin, cabins)], "Search flights")
    times = rng.sample(["06:45", "09:10", "11:35", "14:20", "17:55", "21:05"], 4)
    wanted = rng.choice(times)
    rows = [
        row(f"{time} {start} to {goal}", button("Select", "it" if time == wanted else "")) for time in sorted(times)
    ]
    visit.act(rows, "[button]  Select")
    return (
        f"Find a {cabin.lower()} flight from {start} to {goal} and choose the one that leaves at {wanted}",
        visit.done,
    )


def _library(rng: Random) -> tuple[str, list[Done]]:
    topic = rng.choice(["tides", "beekeeping", "bridges", "fermentation", "birdsong", "glaciers"])
    formats = ["Any format", "Print", "Large print", "Audiobook"]
    form = rng.choice(formats[1:])
    visit = _Visit(rng, "openshelves", ["Catalogue", "Events", "Opening hours", "My account"])
    _form(rng, visit, [("Search the catalogue", topic, ()), ("Format", form, formats)], "Search")
    titles = [f"{first} {topic}" for first in ("A field guide to", "The quiet life of", "Notes on", "Understanding")]
    wanted = rng.choice(titles)
    shelf = [
        row(link(title), f"{form}, {rng.randrange(1950, 2024)}", button("Reserve", "it" if title == wanted else ""))
        for title in _mixed(rng, titles)
    ]
    visit.act(shelf, "[button]  Reserve")
    places = rng.sample(["Harbour branch", "Mill branch", "Central library", "Lakeside branch"], 4)
    place = rng.choice(places[1:])
    visit.act(
        [choice("Pick-up place", "place", places, key="it"), button("Confirm")],
        "[combobox]  Pick-up place",
        "SELECT",
        place,
    )
    visit.act([choice("Pick-up place", "place", places, place), button("Confirm", "it")], "[button]  Confirm")
    text = f"Reserve '{wanted}' as {form.lower()}, found under {topic}, for pick-up at the {place.lower()}"
    return text, visit.done


def _shop(rng: Random) -> tuple[str, list[Done]]:
    groups = ["Pans", "Knives", "Baking", "Storage", "Textiles"]
    group, brand = rng.choice(groups), rng.choice(["Corvid", "Halden", "Mistral", "Ostra"])
    sorts = ["Most popular", "Price: low to high", "Price: high to low"]
    chosen = rng.choice(sorts[1:])
    visit = _Visit(rng, "potsandlids", ["Sale", "Gift cards", "Stores", "Basket"])
    visit.act([link(one, "it" if one == group else "") for one in _mixed(rng, groups)], f"[link]  {group}")
    brands = rng.sample(["Corvid", "Halden", "Mistral", "Ostra"], 4)

    def filters(ticked: bool, value: str, key: str) -> list[Node]:
        boxes = [check(one, ticked and one == brand, "it" if key == one == brand else "") for one in brands]
        return [*boxes, choice("Sort by", "sort", sorts, value, "it" if key == "sort" else "")]

    prices = rng.sample(range(12, 90), 4)
    goods = [(f"{brand} {group.lower()} set {letter}", price) for letter, price in zip("ABCD", prices)]  # noqa: B905
    wanted = (min if chosen.endswith("to high") else max)(goods, key=lambda one: one[1])

    def listed(order: Sequence[tuple[str, int]], key: bool = False) -> list[Node]:
        return [row(link(name), f"{price}.00", button("Add to basket", "it" if key and name == wanted[0] else ""))
                for name, price in order]  # fmt: skip

    visit.act([*filters(False, "", brand), *listed(goods)], f"[checkbox]  {brand}")
    visit.act([*filters(True, "", "sort"), *listed(goods)], "[combobox]  Sort by", "SELECT", chosen)
    by_price = sorted(goods, key=lambda one: one[1], reverse=chosen.endswith("to low"))
    visit.act([*filters(True, chosen, ""), *listed(by_price, True)], "[button]  Add to basket")
    extreme = "cheapest" if chosen.endswith("to high") else "most expensive"
    return (
        f"In {group.lower()}, show {brand} only, sort by {chosen.lower()} and add the {extreme} set to the basket",
        visit.done,
    )


def _clinic(rng: Random) -> tuple[str, list[Done]]:
    wards = ["Dermatology", "Cardiology", "Eye clinic", "Dentistry"]
    ward, name = rng.choice(wards), rng.choice(_NAMES)
    visit = _Visit(rng, "northgate clinic", ["Departments", "Visitors", "Careers", "Contact"])
    entries = [link("Book a visit", "it"), link("Test results"), link("Emergency")]
    visit.act(_mixed(rng, entries), "[link]  Book a visit")
    doctors = rng.sample(["Dr. Alder", "Dr. Birch", "Dr. Cedar", "Dr. Hazel"], 3)
    doctor, days = rng.choice(doctors), rng.sample(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"], 3)
    day = rng.choice(days)

    def framed(*inside: Node) -> list[Node]:
        """The booking tool is a page of its own inside the page."""
        return [tag("iframe", tag("html", tag("body", *inside)), title="Booking")]

    visit.act(
        framed(choice("Department", "ward", ["Choose", *wards], key="it")), "[combobox]  Department", "SELECT", ward
    )
    visit.act(framed(*(link(one, "it" if one == doctor else "") for one in doctors)), f"[link]  {doctor}")
    visit.act(
        framed(*(tag("div", one, key="it" if one == day else "", is_clickable="true") for one in days)),
        f"[div]  {day}",
    )
    visit.act(framed(field("Your name", "name", key="it"), button("Send")), "[textbox]  Your name", "TYPE", name)
    visit.act(framed(field("Your name", "name", name), button("Send", "it")), "[button]  Send")
    return f"Book a visit in {ward.lower()} with {doctor} on {day} for {name}", visit.done


def _hotel(rng: Random) -> tuple[str, list[Done]]:
    city, comfort = rng.choice(_CITIES), rng.choice(["Pool", "Breakfast", "Parking", "Sauna"])
    guests = ["1 guest", "2 guests", "3 guests", "4 guests"]
    count = rng.choice(guests[1:])
    visit = _Visit(rng, "staywell", ["Deals", "Trips", "List your place", "Sign in"])
    _form(rng, visit, [("Destination", city, ()), ("Guests", count, guests)], "Find rooms")
    comforts = rng.sample(["Pool", "Breakfast", "Parking", "Sauna"], 4)
    hotels = rng.sample(["Harbour House", "The Linden", "Hotel Meridian", "Old Mill Inn", "Castle View"], 4)
    wanted = rng.choice(hotels)

    def results(ticked: bool, key: str) -> list[Node]:
        boxes = [check(one, ticked and one == comfort, "it" if key == one == comfort else "") for one in comforts]
        rooms = [
            row(tag("h2", one), f"{rng.randrange(60, 200)} a night", button("View", "it" if key == one else ""))
            for one in hotels
        ]
        return [*boxes, *rooms]

    visit.act(results(False, comfort), f"[checkbox]  {comfort}")
    visit.act(results(True, wanted), "[button]  View")
    return f"Find a room in {city} for {count} with {comfort.lower()} and view {wanted}", visit.done


def _trains(rng: Random) -> tuple[str, list[Done]]:
    start, goal = rng.sample(_CITIES, 2)
    cards = ["None", "Youth", "Senior", "Family"]
    card = rng.choice(cards[1:])
    visit = _Visit(rng, "railpass", ["Tickets", "Timetable", "Lost property", "Groups"])
    _form(
        rng,
        visit,
        [("Departure station", start, ()), ("Arrival station", goal, ()), ("Railcard", card, cards)],
        "Show trains",
    )
    trains = rng.sample(["IC 12", "IC 48", "RE 7", "RE 31", "EC 203"], 3)
    wanted = rng.choice(trains)
    rows = [
        row(tag("span", train), f"{rng.randrange(15, 90)}.00", link("Buy", "it" if train == wanted else ""))
        for train in trains
    ]
    visit.act(rows, "[link]  Buy")
    return f"Buy a ticket for the {wanted} from {start} to {goal} with a {card.lower()} railcard", visit.done


SITES = (
    Site("skyhop", "Travel", "Airlines", _flights),
    Site("openshelves", "Service", "Library", _library),
    Site("potsandlids", "Shopping", "Kitchen", _shop),
    Site("northgate", "Service", "Health", _clinic),
    Site("staywell", "Travel", "Hotel", _hotel),
)
UNSEEN = Site("railpass", "Travel", "Ground", _trains)
"""A website of the test split only."""
