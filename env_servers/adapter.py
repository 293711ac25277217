"""The contract between a benchmark and the service. Standard library only: adapters run under old interpreters.

A benchmark is one `Adapter` (process-wide: engine, task list, facts) that starts `Episode`s (one per session).
The worker process calls both; neither knows of HTTP, sessions or leases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple


class AdapterError(Exception):
    """A fault that the caller can name: the session is as it was before the call.

    Any other exception that leaves an adapter means that the session's state is unknown; the service then rebuilds it.

    Args:
        type: One of the error types of `docs/protocol.md`, e.g. `unknown_task`, `bad_option`, `bad_action`.
        detail: One sentence that says what is wrong and how to mend it.
        retryable: Whether the same call can succeed later without a change.
        extra: Further members for the problem document.
    """

    def __init__(self, type: str, detail: str, retryable: bool = False, **extra: Any) -> None:
        super().__init__(detail)
        self.type = type
        self.detail = detail
        self.retryable = retryable
        self.extra = extra


class EngineGoneError(Exception):
    """The engine that all episodes of this process share has ended, and all of them with it.

    The worker ends itself. The service then rebuilds the episodes in other workers, and suspects of their actions only
    the one in whose call this came up.
    """


@dataclass(frozen=True)
class Task:
    """One task of a benchmark.

    Attributes:
        id: Stable id, equal on every machine and in every release, e.g. `boil/0`.
        split: The benchmark's own name of the split.
        category: What results are grouped by, e.g. the ScienceWorld task type.
    """

    id: str
    split: str
    category: str


@dataclass
class StepResult:
    """What one call of an episode gives back.

    Attributes:
        text: The observation as the benchmark words it.
        reward: This step's reward; the sum over the episode is the final raw score on the documented scale.
        terminated: The task ended, by success or by a fatal mistake.
        truncated: A limit of the benchmark ended the episode. The service's own step limit is added by the service.
        info: Always `raw_score` (the benchmark's own number), `score` (in [0, 1]), `success` (bool) and
            `action_valid` (bool; whether the benchmark could execute the action); whatever else the benchmark offers.
        record: What came from outside of the engine in this call and made the reply what it is (the words of a
            simulated user), a JSON value. Never shown to clients; it is kept in the journal and given back to
            `Adapter.restart` and `Episode.repeat`, so that the episode can be rebuilt.
    """

    text: str
    reward: float
    terminated: bool
    truncated: bool
    info: Dict[str, Any] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType] - dict[str, Any] needs 3.9
    record: Any = None


@dataclass(frozen=True)
class Facts:
    """What the service must know of a benchmark before it starts a worker.

    Attributes:
        name: Short name on the command line and in URLs, e.g. `sciworld`.
        sessions_per_worker: How many live episodes share one worker process.
        concurrency: `single` (one episode a process), `interleaved` (many, one call at a time in the main thread) or
            `threads` (many, each call in a thread of its own).
        python_requires: Version range of the benchmark's interpreter, as in packaging metadata.
        deterministic: Whether (task, seed, options, actions) fixes every reply, so that a lost session can be
            replayed. An episode may narrow this, see `Episode.replayable`.
        max_steps: Step limit of the published protocol, used when the client names none.
        step_timeout: Seconds after which a call counts as hung and its worker is killed.
        affinity: Whether sessions of one task gain from sharing a worker (a cache).
        invalid_patterns: Case-insensitive fragments of an observation that mean "that action was not executed".
        action_format: The published action format, a name of `cope_gym.actions`.
        reward_scale: One sentence: what the sum of rewards is.
    """

    name: str
    sessions_per_worker: int = 1
    concurrency: str = "single"
    python_requires: str = ">=3.11"
    deterministic: bool = True
    max_steps: int = 30
    step_timeout: float = 60.0
    affinity: bool = False
    invalid_patterns: Tuple[str, ...] = ()
    action_format: str = "react"
    reward_scale: str = ""


class Episode(ABC):
    """One running episode. Calls are never concurrent.

    Attributes:
        first: The first observation, with `reward` 0 and the usual `info`.
        replayable: Whether the same calls give the same replies; `None` means the adapter's `Facts.deterministic`.
    """

    first: StepResult
    replayable: Optional[bool] = None

    @abstractmethod
    def step(self, action: Any) -> StepResult:
        """Executes one action. The service never calls this after `terminated` or `truncated`.

        Args:
            action: JSON value, a string for most benchmarks; already checked for length, not for meaning.

        Raises:
            AdapterError: `bad_action` for a malformed action (nothing was executed).
        """

    def repeat(self, action: Any, record: Any) -> StepResult:
        """Executes an action again while the episode is rebuilt, with the `record` that the first time left."""
        return self.step(action)

    def close(self) -> None:  # noqa: B027 - most episodes hold nothing
        """Frees what the episode holds. Called once; must not fail."""


class Adapter(ABC):
    """A benchmark inside its own interpreter.

    Args:
        settings: Server settings of this benchmark (`cope serve --set sciworld.isolation=process`), strings or JSON
            values. An unknown key is a `bad_option`.
    """

    facts: ClassVar[Facts]

    def __init__(self, settings: Optional[Mapping[str, Any]] = None) -> None:
        self.settings: Dict[str, Any] = dict(settings or {})

    @abstractmethod
    def metadata(self) -> Dict[str, Any]:
        """Returns `adapter_version`, `versions` (package → version), `data_digest` (sha256) and `engine_flags`."""

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Returns the benchmark's splits, the training split first."""

    @abstractmethod
    def tasks(self, split: str) -> List[Task]:
        """Returns the tasks of a split in the benchmark's published order.

        Raises:
            AdapterError: `unknown_split`, naming the splits there are.
        """

    @abstractmethod
    def start(self, task_id: str, seed: Optional[int], options: Mapping[str, Any]) -> Episode:
        """Starts an episode.

        Args:
            task_id: An id of `tasks`. It is looked up, never used as a path.
            seed: Seeds whatever the benchmark leaves open beyond the task; ignored by fully fixed ones.
            options: Options of this benchmark; an unknown key or value is a `bad_option` that names the allowed ones.

        Raises:
            AdapterError: `unknown_task` or `bad_option`.
        """

    def restart(self, task_id: str, seed: Optional[int], options: Mapping[str, Any], record: Any) -> Episode:
        """Starts an episode that is rebuilt, with the `record` that its first observation left."""
        return self.start(task_id, seed, options)

    def canonical_id(self, task_id: str) -> Optional[str]:
        """Returns the id, as `tasks` has it, that another published name of a task stands for, else `None`.

        Raises:
            AdapterError: `unknown_task` or `unknown_split`, where more can be said than that it is unknown.
        """
        return None

    def gold(self, task_id: str, options: Mapping[str, Any]) -> Optional[List[Any]]:
        """Returns actions that solve the task, or `None` where there is no solution. Never shown to agents."""
        return None

    def warm(self) -> None:
        """Does beforehand what the first `start` would have to do, e.g. starts the engine; by default nothing."""
        return None

    def close(self) -> None:  # noqa: B027 - not every engine needs an end
        """Ends the engine (child processes included)."""
