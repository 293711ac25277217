"""The skill bank: skills with where they came from and what they were seen to be worth, in one SQLite file.

SQLite's write-ahead log with full synchronisation keeps the file whole through `kill -9` in the middle of a write.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from cope_gym.errors import InputError
from cope_gym.skills.skill import Skill, SkillError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS skills (
    id TEXT PRIMARY KEY, env TEXT NOT NULL, source_task TEXT NOT NULL, category TEXT NOT NULL, query TEXT NOT NULL,
    skill TEXT NOT NULL, provenance TEXT NOT NULL, created REAL NOT NULL, retired TEXT
);
CREATE TABLE IF NOT EXISTS uses (
    skill_id TEXT NOT NULL REFERENCES skills(id), task_id TEXT NOT NULL,
    outcome REAL NOT NULL, baseline REAL, at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS uses_by_skill ON uses(skill_id);
"""


@dataclass(frozen=True)
class BankedSkill:
    """A skill with its record.

    Attributes:
        id: Digest over environment, source task and skill: the same skill is stored once.
        env: Environment name.
        source_task: Task it was extracted from. Evaluation never offers it for that task.
        category: The source task's category.
        query: Text by which it is retrieved, the source task's description.
        skill: The skill.
        provenance: Run, step, model, audit and whatever else the writer knows.
        retired: Why it is no longer offered, or `None`.
        uses: Episodes played with it.
        outcome: Mean outcome of these, or `None`.
        lift: Mean outcome minus that of episodes on the same tasks without a skill; `None` where there were none.
    """

    id: str
    env: str
    source_task: str
    category: str
    query: str
    skill: Skill
    provenance: dict[str, Any] = field(default_factory=dict[str, Any])
    retired: str | None = None
    uses: int = 0
    outcome: float | None = None
    lift: float | None = None

    def to_json(self) -> str:
        """Returns one line of JSON, the form in which banks travel."""
        return json.dumps({**asdict(self), "skill": self.skill.to_dict()}, ensure_ascii=False)


class SkillBank:
    """A bank in a file. Several processes may use it at once.

    Args:
        path: SQLite file; made when absent.

    Raises:
        ValueError: The file is not a skill bank.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._connection() as connection:
                connection.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path} is not a skill bank ({error}); name another file") from error

    def add(
        self,
        env: str,
        source_task: str,
        skill: Skill,
        query: str,
        category: str = "",
        provenance: dict[str, Any] | None = None,
    ) -> str:
        """Stores a skill and returns its id. Storing it again changes nothing."""
        body = json.dumps(skill.to_dict(), sort_keys=True, ensure_ascii=False)
        key = sha256(f"{env}\0{source_task}\0{body}".encode()).hexdigest()[:16]
        row = (key, env, source_task, category, query, body, json.dumps(provenance or {}), time.time(), None)
        with self._connection() as connection:
            connection.execute("INSERT OR IGNORE INTO skills VALUES (?,?,?,?,?,?,?,?,?)", row)
        return key

    def record(self, skill_id: str, task_id: str, outcome: float, baseline: float | None = None) -> None:
        """Notes one episode that was played with a skill.

        Args:
            skill_id: The skill.
            task_id: The task of the episode.
            outcome: Success or score in [0, 1].
            baseline: Mean outcome of episodes on this task without a skill, where there were any.

        Raises:
            KeyError: No such skill.
        """
        with self._connection() as connection:
            if connection.execute("SELECT 1 FROM skills WHERE id = ?", (skill_id,)).fetchone() is None:
                raise KeyError(f"no skill {skill_id} in {self.path}; `cope skills list` names those there are")
            connection.execute(
                "INSERT INTO uses VALUES (?,?,?,?,?)", (skill_id, task_id, outcome, baseline, time.time())
            )

    def retire(self, skill_id: str, reason: str) -> None:
        """Takes a skill out of use; its record stays.

        Raises:
            KeyError: No such skill.
        """
        with self._connection() as connection:
            if not connection.execute("UPDATE skills SET retired = ? WHERE id = ?", (reason, skill_id)).rowcount:
                raise KeyError(f"no skill {skill_id} in {self.path}; `cope skills list` names those there are")

    def retire_harmful(self, min_uses: int = 8, max_lift: float = 0.0) -> list[str]:
        """Retires skills whose measured lift is at most `max_lift` after `min_uses` uses; returns their ids."""
        ids = [s.id for s in self.skills() if s.lift is not None and s.uses >= min_uses and s.lift <= max_lift]
        for skill_id in ids:
            self.retire(skill_id, f"lift at most {max_lift:g} after {min_uses} uses or more")
        return ids

    def differences(self, skill_id: str) -> dict[str, list[float]]:
        """Returns, by task, outcome minus baseline of every use that has one: a lift's interval is made of them."""
        query = "SELECT task_id, outcome - baseline FROM uses WHERE skill_id = ? AND baseline IS NOT NULL"
        by_task: dict[str, list[float]] = defaultdict(list)
        with self._connection() as connection:
            for task_id, difference in connection.execute(query, (skill_id,)):
                by_task[task_id].append(difference)
        return dict(by_task)

    def get(self, skill_id: str) -> BankedSkill:
        """Returns one skill.

        Raises:
            KeyError: No such skill.
        """
        found = self._select("WHERE s.id = ?", (skill_id,))
        if not found:
            raise KeyError(f"no skill {skill_id} in {self.path}; `cope skills list` names those there are")
        return found[0]

    def skills(self, env: str | None = None, retired: bool = False) -> list[BankedSkill]:
        """Returns the skills, best lift first.

        Args:
            env: Only those of one environment.
            retired: Include retired ones.
        """
        clauses = ([] if env is None else ["s.env = ?"]) + ([] if retired else ["s.retired IS NULL"])
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        found = self._select(where, () if env is None else (env,))
        return sorted(found, key=lambda s: (s.lift is None, -(s.lift or 0.0), s.id))

    def export(self) -> Iterator[str]:
        """Yields every skill as a line of JSON."""
        return (skill.to_json() for skill in self.skills(retired=True))

    def load(self, lines: Iterable[str]) -> int:
        """Adds exported skills (not their uses: those were measured elsewhere) and returns how many lines were read.

        Raises:
            SkillError: A line is not an exported skill; nothing of it is stored.
        """
        count = 0
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                provenance = {**data["provenance"], "lift": data.get("lift"), "uses": data.get("uses", 0)}
                skill = Skill.from_dict(data["skill"])
                self.add(data["env"], data["source_task"], skill, data["query"], data["category"], provenance)
            except (ValueError, KeyError, TypeError) as error:
                raise SkillError(f"line {number} is not an exported skill: {error}") from error
            count += 1
        return count

    def _select(self, where: str, parameters: tuple[Any, ...]) -> list[BankedSkill]:
        query = f"""
            SELECT s.id, s.env, s.source_task, s.category, s.query, s.skill, s.provenance, s.retired,
                   COUNT(u.outcome), AVG(u.outcome), AVG(u.outcome - u.baseline)
            FROM skills s LEFT JOIN uses u ON u.skill_id = s.id {where} GROUP BY s.id
        """
        with self._connection() as connection:
            rows = connection.execute(query, parameters).fetchall()
        return [_banked(*row) for row in rows]

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=30.0)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                yield connection
        finally:
            connection.close()


def open_bank(path: Path) -> SkillBank:
    """Opens a bank that is there already.

    Raises:
        InputError: There is none, or the file is none.
    """
    if not path.is_file():
        raise InputError(
            f"There is no skill bank {path}; a run with `skills: true` writes one, or `cope skills import`.",
            type="bad_request",
        )
    try:
        return SkillBank(path)
    except ValueError as error:
        raise InputError(f"{error}.", type="bad_request") from error


def _banked(
    id: str,
    env: str,
    source_task: str,
    category: str,
    query: str,
    skill: str,
    provenance: str,
    retired: str | None,
    uses: int,
    outcome: float | None,
    lift: float | None,
) -> BankedSkill:
    body, origin = Skill.from_dict(json.loads(skill)), json.loads(provenance)
    return BankedSkill(id, env, source_task, category, query, body, origin, retired, uses, outcome, lift)
