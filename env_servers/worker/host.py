"""Runs an adapter: turns requests into calls of it, and what comes of them into replies.

Which thread calls this is `loop.py`'s business; the socket is `main.py`'s.
"""

from __future__ import annotations

import importlib
import math
import platform
import sys
import traceback
from dataclasses import asdict
from typing import Any, Callable, Dict, Mapping, Optional, Type

from env_servers.adapter import Adapter, AdapterError, EngineGoneError, Episode, StepResult
from env_servers.worker.parent import die


def load_adapter(name: str) -> Type[Adapter]:
    """Returns the adapter class behind `package.module:Class`.

    Raises:
        AdapterError: There is none.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise AdapterError("bad_option", f"The adapter {name!r} cannot be loaded: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Adapter)):
        raise AdapterError("bad_option", f"{name!r} is not a subclass of env_servers.adapter.Adapter.")
    return found


class Host:
    """One adapter and its running episodes."""

    def __init__(self, adapter: str, settings: Mapping[str, Any]) -> None:
        self._name = adapter
        self._settings = settings
        self._adapter: Optional[Adapter] = None
        self._episodes: Dict[str, Episode] = {}
        self._operations: Dict[str, Callable[..., Any]] = {
            "hello": self._hello,
            "warm": lambda: self.adapter.warm(),
            "metadata": lambda: self.adapter.metadata(),
            "tasks": self._tasks,
            "canonical_id": self._canonical_id,
            "gold": self._gold,
            "start": self._start,
            "step": self._step,
            "close": self._close,
        }

    @property
    def adapter(self) -> Adapter:
        """The adapter; made at the first use, so that its errors are replies."""
        if self._adapter is None:
            self._adapter = load_adapter(self._name)(self._settings)
        return self._adapter

    def answer(self, request: Mapping[str, Any]) -> Dict[str, Any]:
        """Returns the reply to a request; whatever the adapter raises becomes one."""
        try:
            return {"id": request["id"], "ok": self._operations[request["op"]](**request["args"])}
        except AdapterError as error:
            named = {"type": error.type, "detail": error.detail, "retryable": error.retryable, "extra": error.extra}
            return {"id": request["id"], "error": named}
        except EngineGoneError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201
            die()
        except (Exception, SystemExit) as error:
            # The benchmark broke: the episode's state is unknown and the service decides what becomes of it.
            traceback.print_exc(file=sys.stderr)
            if request["op"] in ("start", "step"):
                self._close(request["args"]["session"])
            return {"id": request["id"], "fault": f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        """Ends all episodes and the engine."""
        for session in list(self._episodes):
            self._close(session)
        if self._adapter is not None:
            self._adapter.close()

    def _hello(self) -> Dict[str, Any]:
        facts = asdict(self.adapter.facts)
        return {"facts": facts, "splits": list(self.adapter.splits()), "python": platform.python_version()}

    def _tasks(self, split: str) -> Any:
        return [[task.id, task.split, task.category] for task in self.adapter.tasks(split)]

    def _canonical_id(self, task_id: str) -> Optional[str]:
        return self.adapter.canonical_id(task_id)

    def _gold(self, task_id: str, options: Mapping[str, Any]) -> Any:
        return self.adapter.gold(task_id, options)

    def _start(self, session: str, **what: Any) -> Dict[str, Any]:
        episode = self.adapter.restart(**what) if "record" in what else self.adapter.start(**what)
        self._episodes[session] = episode
        replayable = self.adapter.facts.deterministic if episode.replayable is None else episode.replayable
        return {"first": _result(episode.first), "replayable": replayable}

    def _step(self, session: str, **what: Any) -> Dict[str, Any]:
        episode = self._episodes[session]
        return _result(episode.repeat(**what) if "record" in what else episode.step(**what))

    def _close(self, session: str) -> None:
        episode = self._episodes.pop(session, None)
        try:
            if episode is not None:
                episode.close()
        except Exception:
            # Closing "must not fail"; where it does, the engine's state no longer matters to this session.
            traceback.print_exc(file=sys.stderr)


def _result(result: StepResult) -> Dict[str, Any]:
    reward = float(result.reward)
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    return {
        "text": str(result.text),
        "reward": reward,
        "terminated": bool(result.terminated),
        "truncated": bool(result.truncated),
        "info": dict(result.info),
        "record": result.record,
    }
