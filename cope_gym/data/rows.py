"""The one table that episodes travel in, as Parquet or JSON Lines alike.

A `Trajectory` in which everything open-ended (options, versions, extras, per-token records) is JSON text, so that
every row of every data set has the same columns of the same types. `from_row` gives back an equal episode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, cast

from cope_gym.errors import InputError
from cope_gym.trajectory import Trajectory

FORMATS = ("parquet", "jsonl")
JSON_COLUMNS = ("error", "options", "versions", "tokens", "extra")
_ROWS_AT_ONCE = 1000

_MESSAGE = {"role": "string", "content": "string"}
_TURN: dict[str, Any] = {
    "index": "int64",
    "message": "int64",
    "action": "string",
    "action_span": ["int64"],
    "valid": "bool",
    "reward": "float64",
    "score": "float64",
    "tokens": "int64",
    "truncated": "bool",
}
COLUMNS: dict[str, Any] = {
    "env": "string",
    "task_id": "string",
    "split": "string",
    "category": "string",
    "seed": "int64",
    "policy": "string",
    "messages": [_MESSAGE],
    "turns": [_TURN],
    "reward": "float64",
    "score": "float64",
    "raw_score": "float64",
    "success": "bool",
    "terminated": "bool",
    "truncated": "bool",
    "error": "string",
    "options": "string",
    "versions": "string",
    "sample": "int64",
    "step": "int64",
    "tokens": "string",
    "extra": "string",
    "schema": "int64",
}
"""Name and type of every column of an episode; a list holds what its items are."""

TASK_COLUMNS: dict[str, Any] = {"env": "string", "task_id": "string", "split": "string", "options": "string"}
"""The columns of a list of tasks."""

SKILL_COLUMNS: dict[str, Any] = {
    "id": "string",
    "env": "string",
    "source_task": "string",
    "category": "string",
    "query": "string",
    "name": "string",
    "description": "string",
    "markdown": "string",
    "skill": "string",
    "provenance": "string",
    "retired": "string",
    "uses": "int64",
    "outcome": "float64",
    "lift": "float64",
}
"""The columns of a skill bank."""

Row = dict[str, Any]


def to_row(episode: Trajectory, with_tokens: bool = True) -> Row:
    """Returns an episode as a row.

    Args:
        episode: The episode.
        with_tokens: Keep the per-token record, which is most of a rollout's size.
    """
    row = asdict(episode)
    if not with_tokens:
        row["tokens"] = None
    for name in JSON_COLUMNS:
        row[name] = None if row[name] is None else json.dumps(row[name], ensure_ascii=False, allow_nan=False)
    for turn in row["turns"]:
        turn["action_span"] = None if turn["action_span"] is None else list(turn["action_span"])
    return row


def from_row(row: Mapping[str, Any]) -> Trajectory:
    """Returns the episode of a row.

    Raises:
        ValueError: It is no row of this schema.
    """
    data = {**row, **{name: json.loads(row[name]) for name in JSON_COLUMNS if isinstance(row.get(name), str)}}
    return Trajectory.from_json(json.dumps(data))


def write(path: Path, rows: Iterable[Row], columns: Mapping[str, Any], format: str) -> int:
    """Writes rows and returns how many there were.

    Raises:
        InputError: Parquet is asked for and the `data` extra is not installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    if format == "jsonl":
        with path.open("w", encoding="utf-8") as out:
            for row in rows:
                out.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
                count += 1
        return count
    arrow, parquet = _arrow()
    schema = arrow.schema([arrow.field(name, _arrow_type(arrow, kind)) for name, kind in columns.items()])
    remaining = iter(rows)
    with parquet.ParquetWriter(path, schema) as out:
        while chunk := list(islice(remaining, _ROWS_AT_ONCE)):
            out.write_table(arrow.Table.from_pylist(chunk, schema=schema))
            count += len(chunk)
    return count


def read(path: Path) -> Iterator[Row]:
    """Yields the rows of a Parquet or JSON Lines file."""
    if path.suffix == ".parquet":
        _, parquet = _arrow()
        for batch in parquet.ParquetFile(path).iter_batches(_ROWS_AT_ONCE):
            yield from batch.to_pylist()
    else:
        with path.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())


def features(columns: Mapping[str, Any]) -> list[Row]:
    """Returns the columns as `dataset_info` of a data card states them, so that `load_dataset` infers nothing."""
    return [{"name": name, **_feature(kind)} for name, kind in columns.items()]


def _feature(kind: Any) -> Row:
    if isinstance(kind, list):
        item = cast("Sequence[Any]", kind)[0]
        return {"list": item if isinstance(item, str) else features(item)}
    return {"dtype": kind}


def _arrow_type(arrow: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        return arrow.list_(_arrow_type(arrow, cast("Sequence[Any]", kind)[0]))
    if isinstance(kind, dict):
        fields = cast("Mapping[str, Any]", kind).items()
        return arrow.struct([arrow.field(name, _arrow_type(arrow, inner)) for name, inner in fields])
    make: Callable[[], Any] = getattr(arrow, "bool_" if kind == "bool" else str(kind))
    return make()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]
    except ImportError as error:
        raise InputError("Parquet needs the `data` extra: pip install 'cope-gym[data]'.", type="no_extra") from error
    return pyarrow, pyarrow.parquet  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
