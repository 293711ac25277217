"""What plays: the `Policy` protocol and the registry behind `--policy KIND[:MODEL]`.

A policy sees the conversation and writes the next turn. It knows nothing of HTTP, sessions or scoring. Other packages
add kinds through the entry-point group `cope.policies` (`cope_train` adds local models there), so that this package
needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, Protocol

from cope_gym.errors import InputError

ENTRY_POINTS = "cope.policies"
NO_GOLD = "no_gold"


class NoGold(InputError):
    """The benchmark has no solution of this task. An evaluation lists the task and scores it nowhere."""

    def __init__(self, env: str, task_id: str) -> None:
        super().__init__(f"{env} has no gold solution for {task_id}.", type=NO_GOLD)


@dataclass(frozen=True)
class Prompt:
    """All that a policy may know when it is asked for a turn.

    Attributes:
        messages: The conversation so far, chat messages `{"role", "content"}`; ends with an observation.
        env: Short environment name.
        task_id: The task; for scripted policies and logs, a fair agent ignores it.
        options: Environment options.
        action_format: The format in which an action is written, a name of `cope_gym.actions`.
        turn: Turn index, from 0.
        sample: Index among several episodes of the task.
        seed: Equal for equal (evaluation seed, task, sample, turn): the only source of chance a policy should use.
        info: The environment's latest `info`.
    """

    messages: Sequence[Mapping[str, str]]
    env: str
    task_id: str
    options: Mapping[str, Any]
    action_format: str
    turn: int
    sample: int
    seed: int
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Reply:
    """One turn of a policy.

    Attributes:
        text: What it wrote.
        tokens: Number of sampled tokens, 0 where unknown.
        truncated: Whether the token limit cut the turn.
        give_up: Ends the episode here, e.g. a person who quits or a script that has no more actions.
    """

    text: str
    tokens: int = 0
    truncated: bool = False
    give_up: bool = False


class Policy(Protocol):
    """Writes turns.

    A fault that is not the agent's (endpoint down) is raised as `cope_gym.errors.InfrastructureError`: the runner
    retries those marked retryable and lists the rest apart. An `InputError` stops the run. What the *model* does wrong
    is a reply.

    Attributes:
        name: For tables, e.g. the model's name.
        batch_size: How many prompts one `act` may get. 1: `act` is called from several threads at once, one prompt
            each. More: one thread calls `act` with whatever is waiting.
        settings: JSON values that decide what it writes (model, revision, temperature …). Part of the result.
    """

    name: str
    batch_size: int
    settings: Mapping[str, Any]

    def act(self, prompts: Sequence[Prompt]) -> Sequence[Reply]:
        """Returns one reply a prompt, in order."""
        ...

    def close(self) -> None:
        """Frees what it holds; may be called more than once."""
        ...


@dataclass(frozen=True)
class PolicySpec:
    """What the command line says of a policy.

    Attributes:
        model: What follows the colon of `KIND:MODEL`, "" without one.
        env: Short environment name.
        gold: Gives the gold actions of a task with options, or `None` where the benchmark has none.
        settings: Further settings, e.g. `temperature`; a factory refuses those that it does not know.
        protocol: `temperature`, `max_tokens` … of the benchmark's published protocol; `take` prefers them to a
            factory's own defaults.
    """

    model: str
    env: str
    gold: Callable[[str, Mapping[str, Any]], Sequence[Any] | None]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    protocol: Mapping[str, Any] = field(default_factory=dict[str, Any])


Factory = Callable[[PolicySpec], Policy]
_factories: dict[str, Factory] = {}


def register(kind: str, factory: Factory) -> None:
    """Adds a kind of policy for this process; installed packages use the entry-point group `cope.policies`."""
    _factories[kind] = factory


def kinds() -> list[str]:
    """Returns the known kinds."""
    return sorted(_factories.keys() | {entry.name for entry in entry_points(group=ENTRY_POINTS)})


def make(policy: str, spec: PolicySpec) -> Policy:
    """Makes a policy from `KIND` or `KIND:MODEL`.

    Args:
        policy: E.g. `gold`, `openai:gpt-x`, `hf:models/mine`.
        spec: The rest; its `model` is replaced by what follows the colon.

    Raises:
        InputError: Unknown kind, or settings that the kind does not take.
    """
    kind, _, model = policy.partition(":")
    factory = _factories.get(kind) or _installed(kind)
    return factory(replace(spec, model=model))


def _installed(kind: str) -> Factory:
    for entry in entry_points(group=ENTRY_POINTS, name=kind):
        try:
            return entry.load()
        except ImportError as error:
            missing = error.name or "a package"
            detail = f"Policy '{kind}' needs {missing}, which is not installed: `pip install 'cope-gym[train]'`."
            raise InputError(detail, type="unknown_policy") from error
    raise InputError(
        f"There is no policy '{kind}'; there are {', '.join(kinds())}, as KIND or KIND:MODEL.", type="unknown_policy"
    )


def take(spec: PolicySpec, **defaults: Any) -> dict[str, Any]:
    """Returns a spec's settings over its protocol over defaults, converted to the defaults' types.

    Raises:
        InputError: A setting that is not among the defaults, or of the wrong type.
    """
    unknown = sorted(spec.settings.keys() - defaults.keys())
    if unknown:
        allowed = ", ".join(sorted(defaults)) or "none"
        raise InputError(f"This policy has no setting {', '.join(unknown)}; it takes: {allowed}.", type="bad_setting")
    chosen = {
        **defaults,
        **{key: spec.protocol[key] for key in spec.protocol.keys() & defaults.keys()},
        **spec.settings,
    }
    return {key: _converted(key, chosen[key], default) for key, default in defaults.items()}


def _converted(key: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool) and isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise InputError(f"Setting {key} is true or false, not '{value}'.", type="bad_setting")
        return value.lower() == "true"
    if default is None or isinstance(value, type(default)):
        return value
    try:
        return type(default)(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"Setting {key} is a {type(default).__name__}, not '{value}'.", type="bad_setting") from error
