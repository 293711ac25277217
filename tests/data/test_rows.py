"""The table that episodes travel in loses nothing, in both formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cope_gym.data import rows
from cope_gym.trajectory import Trajectory, Turn

pytest.importorskip("pyarrow", reason="the `data` extra is not installed")

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_number = st.floats(allow_nan=False, allow_infinity=False, width=32)
_json = st.dictionaries(_text, st.one_of(st.none(), st.booleans(), st.integers(-9, 9), _text), max_size=3)
_turn = st.builds(
    Turn,
    index=st.integers(0, 9),
    message=st.integers(0, 9),
    action=_text,
    action_span=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    valid=st.booleans(),
    reward=_number,
    score=_number,
)
EPISODES = st.builds(
    Trajectory,
    env=_text,
    task_id=_text,
    split=_text,
    seed=st.none() | st.integers(0, 2**31),
    messages=st.lists(st.fixed_dictionaries({"role": _text, "content": _text}), max_size=3),
    turns=st.lists(_turn, max_size=3),
    reward=_number,
    success=st.booleans(),
    error=st.none() | st.fixed_dictionaries({"type": _text, "detail": _text}),
    options=_json,
    versions=_json,
    tokens=st.none() | st.fixed_dictionaries({"ids": st.lists(st.integers(0, 9), max_size=3)}),
    extra=_json,
    step=st.none() | st.integers(0, 99),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(EPISODES, min_size=1, max_size=4))
@pytest.mark.parametrize("format", rows.FORMATS)
def test_rows_give_back_equal_episodes(
    format: str, tmp_path_factory: pytest.TempPathFactory, episodes: list[Trajectory]
) -> None:
    path = tmp_path_factory.mktemp("rows") / f"x.{format}"
    assert rows.write(path, map(rows.to_row, episodes), rows.COLUMNS, format) == len(episodes)
    assert [rows.from_row(row) for row in rows.read(path)] == episodes


def test_many_rows_are_written_in_pieces(tmp_path: Path) -> None:
    episodes = (rows.to_row(Trajectory("walk", f"t/{i}")) for i in range(2500))
    assert rows.write(tmp_path / "x.parquet", episodes, rows.COLUMNS, "parquet") == 2500
    assert [row["task_id"] for row in rows.read(tmp_path / "x.parquet")][::1000] == ["t/0", "t/1000", "t/2000"]


def test_tokens_can_be_left_out() -> None:
    episode = Trajectory("walk", "t/0", tokens={"ids": [1, 2]})
    assert rows.to_row(episode, with_tokens=False)["tokens"] is None
    assert json.loads(rows.to_row(episode)["tokens"]) == {"ids": [1, 2]}


def test_columns_are_those_of_an_episode() -> None:
    row = rows.to_row(Trajectory("walk", "t/0", turns=[Turn(0, 0, "")]))
    assert list(row) == list(rows.COLUMNS)
    assert list(row["turns"][0]) == list(rows.COLUMNS["turns"][0])
