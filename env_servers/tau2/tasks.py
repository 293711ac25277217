"""Task ids and splits of τ²-bench over all domains."""

from __future__ import annotations

from typing import Any, Protocol

from env_servers.adapter import AdapterError, Task

SCORED = ("airline", "retail", "telecom")  # the published domains, in the order that results list them
DOMAINS = (*SCORED, "mock")
_JOINED = ("train", "test", "base")


class Source(Protocol):
    """Where tasks come from: `engine.Engine`."""

    def tasks(self, domain: str) -> dict[str, Any]:
        """Returns the tasks of a domain by id."""
        ...

    def splits(self, domain: str) -> dict[str, list[str]]:
        """Returns the published splits of a domain."""
        ...


def splits(source: Source) -> list[str]:
    """Returns `train`, `test`, `base` over the three scored domains, then `DOMAIN-SPLIT` for every published one."""
    own = [f"{domain}-{name}" for domain in DOMAINS for name in source.splits(domain)]
    return [*_JOINED, *own]


def of(source: Source, split: str) -> list[Task]:
    """Returns the tasks of a split in published order; ids are `DOMAIN/ID`, categories are domains.

    Raises:
        AdapterError: `unknown_split`.
    """
    if split in _JOINED:
        return [task for domain in SCORED for task in _tasks(source, domain, split, split)]
    domain, _, name = split.partition("-")
    if domain in DOMAINS and name in source.splits(domain):
        return _tasks(source, domain, name, split)
    raise AdapterError("unknown_split", f"no split {split!r}; there are: {', '.join(splits(source))}")


def find(source: Source, task_id: str) -> tuple[str, Any]:
    """Returns the domain and the package's task.

    Raises:
        AdapterError: `unknown_task`.
    """
    domain, _, own = task_id.partition("/")
    if domain in DOMAINS and own in source.tasks(domain):
        return domain, source.tasks(domain)[own]
    raise AdapterError(
        "unknown_task",
        f"no task {task_id!r}; ids are DOMAIN/ID such as retail/5, with {', '.join(DOMAINS)} as domains",
    )


def _tasks(source: Source, domain: str, name: str, split: str) -> list[Task]:
    kept = set(source.splits(domain)[name])
    return [Task(f"{domain}/{own}", split, domain) for own in source.tasks(domain) if own in kept]
