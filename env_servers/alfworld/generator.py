"""Makes fresh games of all six task types, without any download. Imported in the benchmark's process only.

A game is a function of seed and number alone. Its domain, grammar, goals, task sentences and the tables of what fits
where are the installed alfworld package's; the rooms are ours. Every game can be won by the way it is built: what
the task asks for is there, reachable, and not yet where it shall go. Its walkthrough is read off the scene, because
TextWorld's own planner takes up to half a minute for a kitchen.
"""

# pyright: reportAttributeAccessIssue=false
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from env_servers.alfworld.game import TASK_TYPES, Game
from env_servers.alfworld.package import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH, constants, goal_library
from env_servers.alfworld.rooms import BATHROOM, BEDROOM, KITCHEN, LIVING_ROOM, ROOMS, Room

VERSION = 1
"""Counts up whenever the same number gives another game."""

_OPENABLE = ("Cabinet", "Drawer", "Fridge", "Microwave", "Safe")
_ROOMS_OF = {
    "pick_and_place_simple": ROOMS,
    "look_at_obj_in_light": (LIVING_ROOM, BEDROOM),
    "pick_clean_then_place_in_recep": (KITCHEN, BATHROOM),
    "pick_heat_then_place_in_recep": (KITCHEN,),
    "pick_cool_then_place_in_recep": (KITCHEN,),
    "pick_two_obj_and_place": ROOMS,
}
# What a task type does to its object, and where: that receptacle is no place to put it in the end.
_TREATMENT = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
_LAMP_STANDS = ("Desk", "SideTable", "Dresser", "CoffeeTable", "Shelf", "DiningTable")


def category(number: int) -> str:
    """Returns the task type of the game with that number: they take turns."""
    return TASK_TYPES[number % len(TASK_TYPES)]


def generate(seed: str, number: int) -> Game:
    """Returns the game of a seed (any text) and number."""
    rng = random.Random(f"alfworld generator {VERSION}:{seed}:{number}")
    kind = category(number)
    room = rng.choice(_ROOMS_OF[kind])
    goal = _draw_goal(rng, kind, room)
    scene = _furnish(rng, room, goal)

    name = f"{kind}-{goal.item}-None-{goal.lamp or goal.target}-{room.scene}"
    template = rng.choice(goal_library.gdict[kind]["templates"])
    words = {"obj": goal.item.lower(), "recep": goal.target.lower(), "toggle": goal.lamp.lower(), "mrecep": ""}
    domain, grammar = _rules()
    return Game(
        folder=name,
        trial=f"trial_G{number:06d}",
        sentence=template.format(**words),
        problem=_problem(scene, goal, f"generated_{number}"),
        walkthrough=tuple(_Walk(scene).win(goal)),
        domain=domain,
        grammar=grammar,
    )


@dataclass(frozen=True)
class _Goal:
    kind: str
    item: str
    target: str = ""
    lamp: str = ""


@dataclass
class _Scene:
    """Receptacles and objects by type and PDDL name, and the receptacle that each object is in."""

    receptacles: dict[str, str] = field(default_factory=dict[str, str])
    objects: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[str, str] = field(default_factory=dict[str, str])


@lru_cache(maxsize=1)
def _rules() -> tuple[str, str]:
    return Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8"), Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8")


def _holds(receptacle: str, item: str) -> bool:
    return item in constants.VAL_RECEPTACLE_OBJECTS.get(receptacle, ())


def _draw_goal(rng: random.Random, kind: str, room: Room) -> _Goal:
    # Only receptacles that the room has for certain, and objects that can start somewhere else.
    certain = [name for name, (least, _) in room.receptacles.items() if least]
    if kind == "look_at_obj_in_light":
        items = [item for item in room.objects if any(_holds(name, item) for name in certain)]
        return _Goal(kind, rng.choice(items), lamp=rng.choice(room.lamps))
    ability, treated_in = _TREATMENT.get(kind, ("", ""))
    able = [item for item in room.objects if not ability or item in constants.VAL_ACTION_OBJECTS[ability]]
    pairs = [
        (item, target)
        for item in able
        for target in certain
        if target != treated_in
        and _holds(target, item)
        and any(_holds(other, item) for other in certain if other != target)
    ]
    item = rng.choice(sorted({item for item, _ in pairs}))
    return _Goal(kind, item, target=rng.choice([target for one, target in pairs if one == item]))


def _furnish(rng: random.Random, room: Room, goal: _Goal) -> _Scene:
    scene = _Scene()
    for kind, (least, most) in room.receptacles.items():
        for _ in range(rng.randint(least, most)):
            scene.receptacles[_new_name(rng, kind, scene.receptacles)] = kind
    for item in room.objects:
        least = 0 if item != goal.item else 2 if goal.kind == "pick_two_obj_and_place" else 1
        for _ in range(max(least, rng.choice((0, 1, 1, 2, 3)))):
            _place(rng, scene, item, () if item != goal.item else (goal.target,))
    if room.lamps:
        _place(rng, scene, goal.lamp or rng.choice(room.lamps), ())
    return scene


def _place(rng: random.Random, scene: _Scene, item: str, avoided: tuple[str, ...]) -> None:
    stands = _LAMP_STANDS if item in constants.VAL_ACTION_OBJECTS["Toggleable"] else None
    fitting = [
        name
        for name, kind in scene.receptacles.items()
        if kind not in avoided and (kind in stands if stands is not None else _holds(kind, item))
    ]
    if fitting:
        name = _new_name(rng, item, scene.objects)
        scene.objects[name] = item
        scene.places[name] = rng.choice(fitting)


def _new_name(rng: random.Random, kind: str, taken: dict[str, str]) -> str:
    """A PDDL name in the package's form, which its naming of entities ("cabinet 3") takes apart again."""
    basin = kind.endswith("Basin")
    while True:
        spots = [
            f"{rng.choice(('plus', 'minus'))}_{rng.randint(0, 4):02d}_dot_{rng.randint(0, 99):02d}" for _ in range(3)
        ]
        name = f"{kind[:-5] if basin else kind}_bar__{'_bar__'.join(spots)}{f'_bar_{kind}' if basin else ''}"
        if name not in taken:
            return name


def _names(scene: _Scene) -> dict[str, str]:
    """Returns what the package calls each entity in a game: type and number, the last of its kind being number 1."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for one in sorted([*scene.receptacles, *scene.objects], key=str.lower, reverse=True):
        kind = (scene.receptacles.get(one) or scene.objects[one]).lower()
        counts[kind] = counts.get(kind, 0) + 1
        names[one] = f"{kind} {counts[kind]}"
    return names


class _Walk:
    """Walks through a scene and writes down the commands."""

    def __init__(self, scene: _Scene) -> None:
        self._scene = scene
        self._names = _names(scene)
        self._commands: list[str] = []
        self._here = ""
        self._opened: set[str] = set()

    def win(self, goal: _Goal) -> list[str]:
        """Returns commands that reach the goal."""
        wanted = [one for one, kind in self._scene.objects.items() if kind == goal.item]
        if goal.lamp:
            self._take(wanted[0])
            lamp = self._first(self._scene.objects, goal.lamp)
            self._go(self._scene.places[lamp])
            self._do("use {}", lamp)
            return self._commands
        target = self._first(self._scene.receptacles, goal.target)
        for one in wanted[: 2 if goal.kind == "pick_two_obj_and_place" else 1]:
            self._take(one)
            self._treat(one, goal)
            self._visit(target)
            self._do("move {} to {}", one, target)
        return self._commands

    def _take(self, one: str) -> None:
        self._visit(self._scene.places[one])
        self._do("take {} from {}", one, self._here)

    def _treat(self, one: str, goal: _Goal) -> None:
        if goal.kind in _TREATMENT:
            verb = goal.kind.split("_")[1]
            self._go(self._first(self._scene.receptacles, _TREATMENT[goal.kind][1]))
            self._do(verb + " {} with {}", one, self._here)

    def _visit(self, receptacle: str) -> None:
        self._go(receptacle)
        if self._scene.receptacles[receptacle] in _OPENABLE and receptacle not in self._opened:
            self._opened.add(receptacle)
            self._do("open {}", receptacle)

    def _go(self, receptacle: str) -> None:
        if receptacle != self._here:
            self._here = receptacle
            self._do("go to {}", receptacle)

    def _do(self, command: str, *entities: str) -> None:
        self._commands.append(command.format(*(self._names[one] for one in entities)))

    @staticmethod
    def _first(among: dict[str, str], kind: str) -> str:
        return next(one for one, its in among.items() if its == kind)


def _problem(scene: _Scene, goal: _Goal, name: str) -> str:
    locations = {
        receptacle: f"loc_bar_{number}_bar_1_bar_0_bar_30" for number, receptacle in enumerate(scene.receptacles, 1)
    }
    start = "loc_bar_0_bar_0_bar_0_bar_30"
    # The domain speaks of these types, so that they must exist in every room.
    kinds = sorted({*scene.receptacles.values(), "SinkBasin", "Sink", "Microwave", "Fridge"})
    items = sorted({*scene.objects.values(), "Knife", "ButterKnife"})
    declared = [
        "agent1 - agent",
        *(f"{item}Type - otype" for item in items),
        *(f"{kind}Type - rtype" for kind in kinds),
        *(f"{one} - object" for one in scene.objects),
        *(f"{one} - receptacle" for one in scene.receptacles),
        *(f"{one} - location" for one in (start, *locations.values())),
    ]
    facts = [f"atLocation agent1 {start}", *_receptacle_facts(scene, locations, kinds, items)]
    facts += _object_facts(scene, locations)
    body = goal_library.gdict[goal.kind]["pddl"].replace("#", "-")
    objects, init = "\n    ".join(declared), "\n    ".join(f"({fact})" for fact in facts)
    head = f"(define (problem {name})\n(:domain alfred)\n(:objects\n    {objects}\n)\n(:init\n    {init}\n)\n"
    return head + body.format(obj=goal.item, recep=goal.target, toggle=goal.lamp)


def _receptacle_facts(scene: _Scene, locations: dict[str, str], kinds: list[str], items: list[str]) -> list[str]:
    facts: list[str] = []
    for one, kind in scene.receptacles.items():
        facts += [f"receptacleType {one} {kind}Type", f"receptacleAtLocation {one} {locations[one]}"]
        if kind in _OPENABLE:
            facts.append(f"openable {one}")
    return facts + [f"canContain {kind}Type {item}Type" for kind in kinds for item in items if _holds(kind, item)]


def _object_facts(scene: _Scene, locations: dict[str, str]) -> list[str]:
    facts: list[str] = []
    abilities = constants.VAL_ACTION_OBJECTS
    for one, item in scene.objects.items():
        place = scene.places[one]
        facts += [f"objectType {one} {item}Type", f"inReceptacle {one} {place}"]
        facts.append(f"objectAtLocation {one} {locations[place]}")
        if item in constants.MOVABLE_RECEPTACLES_SET:
            facts.append(f"isReceptacleObject {one}")
        if item in abilities["Toggleable"]:
            facts.append(f"toggleable {one}")
        else:
            facts.append(f"pickupable {one}")
        facts += [f"{name.lower()} {one}" for name in ("Heatable", "Coolable", "Cleanable") if item in abilities[name]]
        facts += [f"sliceable {one}"] if item in abilities["Sliceable"] else []
    return facts
