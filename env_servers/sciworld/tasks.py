"""The 30 ScienceWorld tasks and their variations: ids, splits, and the `agentgym` panel.

The table is static so that ids can be listed and checked without Java; a test compares it with the engine.
"""

from __future__ import annotations

from env_servers.adapter import AdapterError, Task

SPLITS: tuple[str, ...] = ("train", "dev", "test")
# Every variation in the paper's order, for published lists that do not care for splits; not a split of the benchmark.
ALL = "all"

# In the paper's order, which is also the order of every published index: (paper id, name, variations).
TABLE: tuple[tuple[str, str, int], ...] = (
    ("1-1", "boil", 30),
    ("1-2", "melt", 30),
    ("1-3", "freeze", 30),
    ("1-4", "change-the-state-of-matter-of", 30),
    ("2-1", "use-thermometer", 540),
    ("2-2", "measure-melting-point-known-substance", 436),
    ("2-3", "measure-melting-point-unknown-substance", 300),
    ("3-1", "power-component", 20),
    ("3-2", "power-component-renewable-vs-nonrenewable-energy", 20),
    ("3-3", "test-conductivity", 900),
    ("3-4", "test-conductivity-of-unknown-substances", 600),
    ("4-1", "find-living-thing", 300),
    ("4-2", "find-non-living-thing", 300),
    ("4-3", "find-plant", 300),
    ("4-4", "find-animal", 300),
    ("5-1", "grow-plant", 126),
    ("5-2", "grow-fruit", 126),
    ("6-1", "chemistry-mix", 32),
    ("6-2", "chemistry-mix-paint-secondary-color", 36),
    ("6-3", "chemistry-mix-paint-tertiary-color", 36),
    ("7-1", "lifespan-longest-lived", 125),
    ("7-2", "lifespan-shortest-lived", 125),
    ("7-3", "lifespan-longest-lived-then-shortest-lived", 125),
    ("8-1", "identify-life-stages-1", 14),
    ("8-2", "identify-life-stages-2", 10),
    ("9-1", "inclined-plane-determine-angle", 168),
    ("9-2", "inclined-plane-friction-named-surfaces", 1386),
    ("9-3", "inclined-plane-friction-unnamed-surfaces", 162),
    ("10-1", "mendelian-genetics-known-plant", 120),
    ("10-2", "mendelian-genetics-unknown-plant", 480),
)
VARIATIONS: dict[str, int] = {name: count for _, name, count in TABLE}

# AgentGym leaves out growing, the inclined planes and genetics: 4639 of the 7207 variations.
_NOT_IN_AGENTGYM = frozenset({"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"})


def split_range(variations: int, split: str) -> range:
    """Returns a split's variations: two quarters train, one dev, and the rest test."""
    quarter = variations // 4
    bounds = {"train": (0, 2 * quarter), "dev": (2 * quarter, 3 * quarter), "test": (3 * quarter, variations)}
    return range(*bounds[split])


def tasks_of(split: str) -> list[Task]:
    """Returns a split's tasks in the published order.

    Raises:
        AdapterError: `unknown_split`.
    """
    if split == ALL:
        return [task for name in VARIATIONS for part in SPLITS for task in _tasks(name, part)]
    if split not in SPLITS:
        raise AdapterError(
            "unknown_split", f"ScienceWorld has no split {split!r}; it has {', '.join([*SPLITS, ALL])}."
        )
    return [task for name in VARIATIONS for task in _tasks(name, split)]


def _tasks(name: str, split: str) -> list[Task]:
    return [Task(f"{name}/{variation}", split, name) for variation in split_range(VARIATIONS[name], split)]


def parse_id(task_id: object) -> tuple[str, int]:
    """Returns the task's name and variation; the engine itself checks neither.

    Raises:
        AdapterError: `unknown_task`.
    """
    name, slash, number = task_id.partition("/") if isinstance(task_id, str) else ("", "", "")
    count = VARIATIONS.get(name)
    if count is None:
        raise AdapterError(
            "unknown_task",
            f"ScienceWorld has no task {str(task_id)[:80]!r}; ids are a task and a variation such as 'boil/0', "
            f"the tasks are: {', '.join(VARIATIONS)}.",
        )
    # Only the canonical spelling is an id: `boil/00` or `boil/+1` would be second names of one task.
    if not slash or not number.isascii() or not number.isdigit() or str(int(number[:9])) != number:
        raise AdapterError("unknown_task", f"{task_id[:80]!r} names no variation; write for example '{name}/0'.")  # type: ignore[index]
    if int(number) >= count:
        raise AdapterError("unknown_task", f"{name} has the variations 0 to {count - 1}, there is no {number[:20]}.")
    return name, int(number)


def agentgym_ids() -> list[str]:
    """Returns the ids that AgentGym numbers 0 to 4638, in that order."""
    return [
        f"{name}/{variation}"
        for paper_id, name, count in TABLE
        if paper_id not in _NOT_IN_AGENTGYM
        for variation in range(count)
    ]
