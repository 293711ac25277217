"""The task table: ids, splits and the published index. No engine is needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cope_gym.evaluate import panels
from env_servers.adapter import AdapterError
from env_servers.sciworld import tasks


def test_totals_are_the_published_ones() -> None:
    sizes = [len(tasks.tasks_of(split)) for split in tasks.SPLITS]
    assert sizes == [3592, 1796, 1819]
    everything = [task.id for task in tasks.tasks_of("all")]
    assert len(everything) == 7207
    assert everything[:31] == [*(f"boil/{variation}" for variation in range(30)), "melt/0"]
    assert {task.id for split in tasks.SPLITS for task in tasks.tasks_of(split)} == set(everything)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("boil", (14, 7, 9)),
        ("identify-life-stages-2", (4, 2, 4)),
        ("inclined-plane-friction-named-surfaces", (692, 346, 348)),
        ("identify-life-stages-1", (6, 3, 5)),
    ],
)
def test_split_sizes_of_uneven_tasks(name: str, sizes: tuple[int, int, int]) -> None:
    assert tuple(len(tasks.split_range(tasks.VARIATIONS[name], split)) for split in tasks.SPLITS) == sizes


def test_agentgym_index_has_the_published_offsets() -> None:
    ids = tasks.agentgym_ids()
    assert len(ids) == 4639
    published = {
        "boil": 0,
        "melt": 30,
        "freeze": 60,
        "change-the-state-of-matter-of": 90,
        "use-thermometer": 120,
        "measure-melting-point-known-substance": 660,
        "measure-melting-point-unknown-substance": 1096,
        "power-component": 1396,
        "power-component-renewable-vs-nonrenewable-energy": 1416,
        "test-conductivity": 1436,
        "test-conductivity-of-unknown-substances": 2336,
        "find-living-thing": 2936,
        "find-non-living-thing": 3236,
        "find-plant": 3536,
        "find-animal": 3836,
        "chemistry-mix": 4136,
        "chemistry-mix-paint-secondary-color": 4168,
        "chemistry-mix-paint-tertiary-color": 4204,
        "lifespan-longest-lived": 4240,
        "lifespan-shortest-lived": 4365,
        "lifespan-longest-lived-then-shortest-lived": 4490,
        "identify-life-stages-1": 4615,
        "identify-life-stages-2": 4629,
    }
    assert {name: ids.index(f"{name}/0") for name in published} == published


def test_the_shipped_panel_is_that_index() -> None:
    panel = panels.load("sciworld_agentgym")
    assert list(panel.task_ids) == tasks.agentgym_ids()
    assert (panel.env, panel.split, panel.options) == ("sciworld", "all", {})
    assert panels.verify(panel, [task.id for task in tasks.tasks_of("all")]) == []


def test_every_id_is_read_back() -> None:
    for split in tasks.SPLITS:
        for task in tasks.tasks_of(split):
            name, variation = tasks.parse_id(task.id)
            assert (f"{name}/{variation}", name) == (task.id, task.category)


@pytest.mark.parametrize(
    "bad",
    ["boil", "boil/", "boil/30", "boil/-1", "boil/00", "boil/1.0", "boil/ 1", "boil/1/2", "Boil/0", "1-1/0", "", "/0"]
    + ["boil/²", "boil/٣", "boil/" + "9" * 5000, "../boil/0", None, 0, True, ["boil/0"], {"id": "boil/0"}],
)
def test_other_ids_are_refused_in_a_sentence(bad: object) -> None:
    with pytest.raises(AdapterError) as caught:
        tasks.parse_id(bad)
    assert caught.value.type == "unknown_task"
    assert len(caught.value.detail) < 1200


@given(st.text() | st.integers() | st.none())
def test_arbitrary_ids_never_fail_otherwise(value: object) -> None:
    try:
        name, variation = tasks.parse_id(value)
    except AdapterError as error:
        assert error.type == "unknown_task"
    else:
        assert value == f"{name}/{variation}"


def test_unknown_split_names_the_splits() -> None:
    with pytest.raises(AdapterError, match="train, dev, test"):
        tasks.tasks_of("valid")
