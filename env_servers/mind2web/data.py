"""Imports Mind2Web's published data: `cope data import mind2web hub:osunlp/Mind2Web`, or a folder, file or archive.

Runs in the main interpreter with the standard library; the Hub and Parquet need the `data` extra. The building itself
runs in Mind2Web's own environment (`prepare.py`).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import IO, Any

from env_servers.install import cache_home, environment, install
from env_servers.mind2web.official import OFFICIAL_COUNTS, SPLITS, in_order, split_of

PASSWORD = "mind2web"
"""Of the archive with the test splits, as the data set's card says. It keeps crawlers out, not people."""

_ROOT = Path(__file__).resolve().parents[2]
_JSON = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".zip")
_OF_TASKS = ("annotation_id", "website", "domain", "subdomain", "confirmed_task", "action_reprs", "actions")
_OF_ACTIONS = ("action_uid", "target_action_index", "operation", "pos_candidates", "cleaned_html", "raw_html")
_COLUMNS = frozenset((*_OF_TASKS, *_OF_ACTIONS))

Report = Callable[[str], None]
Rows = Iterator[tuple[str, Mapping[str, Any]]]


class ImportFailed(Exception):
    """An import that cannot be done; the message says why and what to do."""


def import_data(
    source: str,
    name: str | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    password: str = PASSWORD,
    report: Report | None = None,
) -> dict[str, Any]:
    """Reads published data and stores it under the cache folder; its splits replace those that were there.

    Args:
        source: `hub:OWNER/NAME`, or a folder, a file (JSON, JSON lines, Parquet) or `test.zip`.
        name: Name of the data, for `--set mind2web.data=NAME`; by default that of the Hub, else `Mind2Web`.
        split: Split of files whose name says none.
        limit: Take the first tasks of each split only.
        password: Of encrypted archives.
        report: Is told of each stage.

    Returns:
        `file`, `splits` (what was counted) and `notes` (sentences that the user should read).

    Raises:
        ImportFailed: With the line that mends it.
    """
    tell = report or _silent
    if split is not None and split not in SPLITS:
        raise ImportFailed(f"There is no split {split!r}; splits are {', '.join(SPLITS)}.")
    hub = source[4:] if source.startswith("hub:") else None
    chosen = name or (hub.rpartition("/")[2] if hub else "Mind2Web")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", chosen):
        raise ImportFailed(f"{chosen!r} is no name of data; use letters, digits, dots, dashes and underscores.")
    install("mind2web")
    files, rows = _of_hub(hub, tell) if hub is not None else _of_disk(Path(source).expanduser(), split)
    target = cache_home() / "data" / "mind2web" / f"{chosen}.sqlite"
    facts = _build(target, files, rows, password, limit, tell)
    return {"file": str(target), "splits": facts, "notes": _notes(facts, chosen, limit)}


def _of_disk(path: Path, split: str | None) -> tuple[list[tuple[str, str]], Rows]:
    """Finds the files of each split; Parquet is read here, all else by the builder."""
    if not path.exists():
        raise ImportFailed(f"{path} does not exist: name a folder with Mind2Web's files, or hub:osunlp/Mind2Web.")
    found = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    found = sorted(
        (one for one in found if one.name.endswith((*_JSON, ".parquet"))), key=lambda one: in_order(one.name)
    )
    named = [(_split_for(one, split), one) for one in found]
    files = [(part, str(one.resolve())) for part, one in named if one.suffix != ".parquet"]
    tables = [(part, str(one.resolve())) for part, one in named if one.suffix == ".parquet"]
    if not named:
        raise ImportFailed(f"{path} holds no JSON, Parquet or zip files of Mind2Web.")
    return files, _of_parquet(tables) if tables else iter(())


def _split_for(path: Path, split: str | None) -> str:
    if path.suffix == ".zip":  # its members say it
        return split or ""
    known = split or split_of("/".join(path.parts[-3:]))
    if known is None:
        raise ImportFailed(f"The name of {path} says no split: name it with --split, one of {', '.join(SPLITS)}.")
    return known


def _of_parquet(tables: list[tuple[str, str]]) -> Rows:
    datasets = _datasets()
    by_split = {split: [path for one, path in tables if one == split] for split, _ in tables}
    return _rows(datasets.load_dataset("parquet", data_files=by_split, streaming=True))


def _of_hub(name: str, tell: Report) -> tuple[list[tuple[str, str]], Rows]:
    """Has `datasets` find and fetch a data set; `HF_ENDPOINT` names another Hub.

    Published JSON is fetched as files and read one task at a time: `datasets` itself would hold 600 MB of it at once.
    """
    datasets = _datasets()
    tell(f"asking the Hub for {name}")
    try:
        builder = datasets.load_dataset_builder(name)
        found: Mapping[Any, list[Any]] = builder.config.data_files or {}
        urls = {str(split): [str(url) for url in part] for split, part in found.items()}
        if not all(url.endswith(_JSON) for part in urls.values() for url in part) or not urls:
            return [], _rows(datasets.load_dataset(name, streaming=True))
        files = [(split, url) for split, part in urls.items() for url in sorted(part, key=in_order)]
        tell(f"fetching {len(files)} files")
        paths: list[str] = datasets.DownloadManager().download([url for _, url in files])
        fetched = [(split, path) for (split, _), path in zip(files, paths, strict=True)]
        return [*fetched, *(("", path) for path in _archives(name))], iter(())
    except (OSError, ValueError, RuntimeError) as error:
        raise ImportFailed(f"The Hub does not give {name}: {error}") from error


def _archives(name: str) -> list[str]:
    """Fetches `test.zip`, which no loader opens, where a data set has one."""
    from huggingface_hub import HfApi

    if Path(name).is_dir():
        return [str(path) for path in [Path(name) / "test.zip"] if path.is_file()]
    if not HfApi().file_exists(name, "test.zip", repo_type="dataset"):
        return []
    fetch: Callable[..., Any] = HfApi().hf_hub_download  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return [str(fetch(name, "test.zip", repo_type="dataset"))]


def _datasets() -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]
    except ImportError as error:
        raise ImportFailed("The Hub and Parquet need the `data` extra: pip install 'cope-gym[data]'") from error
    return datasets


def _rows(loaded: Mapping[str, Any]) -> Rows:
    for split in sorted(loaded, key=lambda one: SPLITS.index(one) if one in SPLITS else len(SPLITS)):
        part = split_of(split)
        if part is None:
            raise ImportFailed(f"The data has a split {split!r}; those of Mind2Web are {', '.join(SPLITS)}.")
        table = loaded[split]
        if table.features:  # not even decode what is not wanted, pictures above all
            table = table.select_columns([one for one in table.features if one in _COLUMNS])
        for row in table:
            yield part, {key: value for key, value in row.items() if key in _COLUMNS}


def _build(
    target: Path,
    files: Iterable[tuple[str, str]],
    rows: Rows,
    password: str,
    limit: int | None,
    tell: Report,
) -> dict[str, Any]:
    """Runs the builder: files it reads itself, rows it is given."""
    start = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from env_servers.mind2web.prepare import main; main()"
    order = {"target": str(target), "files": list(files), "password": password, "limit": limit}
    process = subprocess.Popen(
        [environment("mind2web"), "-I", "-c", start],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="surrogatepass",
    )
    assert process.stdin is not None and process.stdout is not None
    told: list[dict[str, Any]] = []
    listener = Thread(target=_listen, args=(process.stdout, told, tell), daemon=True)
    listener.start()
    try:
        _feed(process.stdin, order, rows)
        listener.join()
    except BaseException:
        process.kill()
        raise
    finally:
        process.stdout.close()
        code = process.wait()
    last = told[-1] if told else {}
    if code or "facts" not in last:
        raise ImportFailed(last.get("error") or f"The builder ended with code {code}; its words are above.")
    return last["facts"]


def _feed(pipe: IO[str], order: Mapping[str, Any], rows: Rows) -> None:
    try:
        with pipe:
            pipe.write(json.dumps(order) + "\n")
            for split, row in rows:
                pipe.write(json.dumps([split, row]) + "\n")
    except BrokenPipeError:  # the builder has given up; what it said tells why
        return


def _listen(pipe: IO[str], told: list[dict[str, Any]], tell: Report) -> None:
    for line in pipe:
        message = json.loads(line)
        if "say" in message:
            tell(message["say"])
        else:
            told.append(message)


def _notes(facts: Mapping[str, Any], name: str, limit: int | None) -> list[str]:
    notes: list[str] = []
    for split, counts in facts.items():
        share = 100 * counts["unreachable"] / counts["steps"]
        notes.append(
            f"{split}: {counts['tasks']} tasks, {counts['steps']} steps, of which {counts['unreachable']} "
            f"({share:.1f} %) cannot be done right ({counts['without_element']} because the data set lost their "
            "element)."
        )
        if limit is None and counts["tasks"] not in OFFICIAL_COUNTS[split]:
            published = " or ".join(map(str, OFFICIAL_COUNTS[split]))
            notes.append(f"{split} was published with {published} tasks: numbers on it are not comparable.")
        if counts.get("malformed"):
            notes.append(f"{split}: {counts['malformed']} malformed rows were left out.")
        if split.startswith("test"):
            notes.append(f"{split}: its authors ask that it is not published again in plain text.")
    if name != "Mind2Web":
        notes.append(f"Serve it with --set mind2web.data={name}.")
    return notes


def _silent(what: str) -> None:
    pass
