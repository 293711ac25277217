"""Who lives in the self-made world, and what their apps hold before any task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NOW = "2023-05-18T12:00:00"
PASSWORD = "sesame-2023"
APPS = ("simple_note", "todoist", "phone", "venmo")


@dataclass(frozen=True)
class Person:
    """One inhabitant; the first three give tasks."""

    first_name: str
    last_name: str
    phone_number: str
    birthday: str

    @property
    def email(self) -> str:
        """Every app but the phone knows people by it."""
        return f"{self.first_name}.{self.last_name}@example.com".lower()


PEOPLE = (
    Person("Ada", "Byrne", "2025550101", "1988-03-14"),
    Person("Ben", "Okoro", "2025550102", "1991-07-02"),
    Person("Clara", "Lindt", "2025550103", "1985-11-23"),
    Person("Dev", "Rao", "2025550104", "1990-01-30"),
    Person("Elif", "Kaya", "2025550105", "1993-09-09"),
    Person("Finn", "Olsen", "2025550106", "1987-05-18"),
    Person("Gus", "Moreau", "2025550107", "1995-12-01"),
    Person("Hana", "Sato", "2025550108", "1992-04-04"),
)
GIVERS = PEOPLE[:3]
_OTHERS = PEOPLE[3:]


@dataclass(frozen=True)
class Belongings:
    """What differs between the three who give tasks. Lists are in the order of creation."""

    roommates: tuple[Person, Person]
    friends: tuple[Person, Person, Person]
    debts: dict[str, float]
    groceries: tuple[str, ...]
    announcement: str
    pinned_title: str
    recipes: tuple[str, ...]
    open_tasks: tuple[str, ...]
    done_tasks: tuple[str, ...]
    alarms: dict[str, str]
    ticket: float
    rent: float
    asked: dict[str, float]


def _rotated(number: int) -> tuple[Person, ...]:
    return _OTHERS[number:] + _OTHERS[:number]


def _belongings(number: int, **different: Any) -> Belongings:
    people = _rotated(number)
    return Belongings(roommates=(people[0], people[1]), friends=(people[2], people[3], people[4]), **different)


BELONGINGS = (
    _belongings(
        0,
        debts={"Finn": 24.0, "Gus": 7.5},
        groceries=("oat milk", "lentils", "coffee beans"),
        announcement="The plumber comes on Friday at nine",
        pinned_title="Packing list",
        recipes=("Dal", "Focaccia", "Plum cake"),
        open_tasks=("Order boxes", "Cancel gas contract"),
        done_tasks=("Find a van",),
        alarms={"Gym": "06:30", "Standup": "09:45"},
        ticket=18.0,
        rent=320.0,
        asked={"Finn": 11.0, "Hana": 40.0},
    ),
    _belongings(
        1,
        debts={"Gus": 61.25, "Hana": 5.0},
        groceries=("tofu", "rice", "limes", "basil"),
        announcement="Quiet hours start at ten this week",
        pinned_title="Garden plan",
        recipes=("Jollof rice", "Pepper soup", "Plantain bread", "Yam pie"),
        open_tasks=("Paint the hallway", "Sell the desk", "Measure the windows"),
        done_tasks=("Return the keys", "Change address"),
        alarms={"Swim": "05:50", "Medicine": "20:00"},
        ticket=27.5,
        rent=275.0,
        asked={"Gus": 16.0, "Dev": 9.0},
    ),
    _belongings(
        2,
        debts={"Hana": 13.75, "Dev": 88.0},
        groceries=("rye bread", "apples"),
        announcement="Guests arrive on Sunday afternoon",
        pinned_title="Wifi notes",
        recipes=("Rösti", "Lebkuchen"),
        open_tasks=("Call the landlord",),
        done_tasks=("Book movers", "Clean the cellar", "Label cables"),
        alarms={"Run": "07:10", "Bread dough": "18:25"},
        ticket=42.0,
        rent=410.0,
        asked={"Hana": 22.0, "Elif": 3.0},
    ),
)


def person(first_name: str) -> Person:
    """Returns the inhabitant of that name."""
    return next(one for one in PEOPLE if one.first_name == first_name)


def notes(number: int) -> list[dict[str, Any]]:
    """Returns the notes of one who gives tasks."""
    own = BELONGINGS[number]
    owed = "\n".join(f"{name}: ${amount:.2f}" for name, amount in own.debts.items())
    written: list[dict[str, Any]] = [
        {"title": "Money I owe", "content": owed, "tags": ["money"]},
        {"title": "Groceries", "content": "\n".join(f"- {item}" for item in own.groceries), "tags": ["home"]},
        {"title": "Announcement for roommates", "content": own.announcement, "tags": ["home"]},
        {"title": own.pinned_title, "content": "See the drawer.", "tags": []},
        {"title": "Books", "content": "Dubliners\nSolaris", "tags": ["fun"]},
    ]
    written += [{"title": title, "content": f"How to make {title}.", "tags": ["recipe"]} for title in own.recipes]
    return written


def messages(number: int) -> list[tuple[Person, str]]:
    """Returns the text messages that one who gives tasks has received, oldest first."""
    own = BELONGINGS[number]
    friend, other, _ = own.friends
    return [
        (other, "Are you coming on Saturday?"),
        (friend, f"I bought your concert ticket, you owe me ${own.ticket:.2f}."),
        (other, "Never mind, see you next week."),
    ]
