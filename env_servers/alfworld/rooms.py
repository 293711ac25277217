"""What the generator furnishes its rooms with: how many of each receptacle, and which objects lie about.

Numbers are in the range of the official scenes. What fits where, and what can be heated, cooled, cleaned or sliced, is
not decided here but by the tables of the alfworld package.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """A kind of room.

    Attributes:
        scene: Number in the folder name, in the room's hundred and outside the official scenes.
        receptacles: Receptacle → least and greatest number.
        objects: What can be picked up, up to three of each.
        lamps: What can be switched on, at most one of them.
    """

    scene: int
    receptacles: dict[str, tuple[int, int]]
    objects: tuple[str, ...]
    lamps: tuple[str, ...] = ()


KITCHEN = Room(
    scene=90,
    receptacles={
        "Cabinet": (6, 16),
        "CoffeeMachine": (1, 1),
        "CounterTop": (1, 3),
        "DiningTable": (0, 2),
        "Drawer": (3, 9),
        "Fridge": (1, 1),
        "GarbageCan": (1, 1),
        "Microwave": (1, 1),
        "Shelf": (0, 3),
        "SideTable": (0, 1),
        "SinkBasin": (1, 1),
        "StoveBurner": (4, 4),
        "Toaster": (1, 1),
    },
    objects=(
        *(
            "Apple",
            "Bowl",
            "Bread",
            "ButterKnife",
            "Cup",
            "DishSponge",
            "Egg",
            "Fork",
            "Glassbottle",
            "Kettle",
            "Knife",
        ),
        *("Ladle", "Lettuce", "Mug", "Pan", "PepperShaker", "Plate", "Pot", "Potato", "SaltShaker", "SoapBottle"),
        *("Spatula", "Spoon", "Tomato", "Vase", "WineBottle"),
    ),
)
LIVING_ROOM = Room(
    scene=290,
    receptacles={
        "ArmChair": (1, 2),
        "Cabinet": (0, 3),
        "CoffeeTable": (1, 1),
        "DiningTable": (0, 1),
        "Drawer": (2, 8),
        "Dresser": (0, 1),
        "GarbageCan": (1, 1),
        "Ottoman": (0, 1),
        "Safe": (0, 1),
        "Shelf": (0, 4),
        "SideTable": (1, 3),
        "Sofa": (1, 2),
    },
    objects=(
        *(
            "Book",
            "Bowl",
            "Box",
            "Candle",
            "CellPhone",
            "CreditCard",
            "KeyChain",
            "Laptop",
            "Newspaper",
            "Pen",
            "Pencil",
        ),
        *("Pillow", "Plate", "RemoteControl", "Statue", "TissueBox", "Vase", "Watch", "WateringCan"),
    ),
    lamps=("DeskLamp", "FloorLamp"),
)
BEDROOM = Room(
    scene=390,
    receptacles={
        "ArmChair": (0, 1),
        "Bed": (1, 2),
        "Cabinet": (0, 2),
        "Desk": (1, 2),
        "Drawer": (3, 9),
        "Dresser": (0, 1),
        "GarbageCan": (1, 1),
        "LaundryHamper": (0, 1),
        "Safe": (0, 1),
        "Shelf": (1, 6),
        "SideTable": (1, 2),
    },
    objects=(
        *("AlarmClock", "BaseballBat", "BasketBall", "Book", "Bowl", "Box", "CD", "CellPhone", "Cloth", "CreditCard"),
        *("KeyChain", "Laptop", "Mug", "Pen", "Pencil", "Pillow", "Statue", "TennisRacket", "TissueBox", "Watch"),
    ),
    lamps=("DeskLamp",),
)
BATHROOM = Room(
    scene=490,
    receptacles={
        "BathtubBasin": (0, 1),
        "Cabinet": (1, 5),
        "CounterTop": (1, 2),
        "Drawer": (0, 4),
        "GarbageCan": (1, 1),
        "HandTowelHolder": (1, 2),
        "Shelf": (0, 2),
        "SinkBasin": (1, 2),
        "Toilet": (1, 1),
        "ToiletPaperHanger": (1, 1),
        "TowelHolder": (1, 2),
    },
    objects=(
        *("Candle", "Cloth", "DishSponge", "HandTowel", "SoapBar", "SoapBottle", "SprayBottle", "TissueBox"),
        *("ToiletPaper", "Towel"),
    ),
)
ROOMS: tuple[Room, ...] = (KITCHEN, LIVING_ROOM, BEDROOM, BATHROOM)
