"""The package's own orchestrator as an adapter, for `cope bench` and for tests that compare with it. Never served.

Measured is what the package's `run_task` does: `Orchestrator.run` over a fresh environment with a database read from
disk, then `evaluate_simulation`. `run` returns only at the end, so it has a thread, whose agent says what `step` is
given; the customer is the scripted one, as in the adapter's row. The package's Gymnasium class does the same with more
around it (it polls every 10 ms and reads the task file in every step), and Gymnasium is not in the environment here.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any, ClassVar

from env_servers.adapter import Adapter, Episode, Facts, StepResult, Task
from env_servers.tau2 import actions, tasks
from env_servers.tau2.engine import Engine
from env_servers.tau2.users import ScriptedUser

from tau2.agent.base import LocalAgent  # isort: skip
from tau2.data_model.message import AssistantMessage, MultiToolMessage, ToolCall  # isort: skip
from tau2.data_model.simulation import SimulationRun  # isort: skip
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation  # isort: skip
from tau2.orchestrator.orchestrator import Orchestrator  # isort: skip


class _Agent(LocalAgent[None]):
    """Hands on what it hears, and waits for what it is to say; `None` ends its thread."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment.get_tools(), environment.get_policy())
        self.heard: SimpleQueue[Any] = SimpleQueue()
        self.says: SimpleQueue[Any] = SimpleQueue()

    def get_init_state(self, message_history: list[Any] | None = None) -> None:
        return None

    def generate_next_message(self, message: Any, state: None) -> tuple[Any, None]:
        self.heard.put(message)
        said = self.says.get()
        if said is None:
            raise SystemExit
        return said, state


class StockEpisode(Episode):
    """One run of the package's orchestrator."""

    def __init__(self, domain: str, task: Any, environment: Any, max_messages: int) -> None:
        self._domain, self._task = domain, task
        self._agent = _Agent(environment)
        user = ScriptedUser(task, environment.get_user_tools() if environment.user_tools is not None else None)
        self._run = Orchestrator(domain, self._agent, user, environment, task, max_steps=max_messages).run
        threading.Thread(target=self._play, daemon=True).start()
        self.first = self._next()

    def step(self, action: Any) -> StepResult:
        """Sends a message, or the call between tags that a gold path holds."""
        turn = actions.read(action, (), False)
        calls = [ToolCall(name=call.name, arguments=call.arguments) for call in turn.calls]
        said = AssistantMessage(role="assistant", content=turn.message or None, tool_calls=calls or None)
        self._agent.says.put(said)
        return self._next()

    def close(self) -> None:
        """Ends the thread, if the conversation has not ended it."""
        self._agent.says.put(None)

    def _play(self) -> None:
        try:
            self._agent.heard.put(self._run())
        except Exception as error:
            self._agent.heard.put(error)

    def _next(self) -> StepResult:
        heard = self._agent.heard.get()
        if isinstance(heard, Exception):
            raise heard
        if isinstance(heard, SimulationRun):
            graded = evaluate_simulation(heard, self._task, EvaluationType.ALL, solo_mode=False, domain=self._domain)
            return _result(heard.messages[-1:], graded.reward, True)
        return _result(heard.tool_messages if isinstance(heard, MultiToolMessage) else [heard], 0.0, False)


class StockAdapter(Adapter):
    """τ²-bench as installed."""

    facts: ClassVar[Facts] = Facts(name="tau2-stock", concurrency="interleaved")

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        self._engine = Engine(keep_databases=False)

    def metadata(self) -> dict[str, Any]:
        """See the base class."""
        return {"versions": {"tau2": self._engine.package}}

    def splits(self) -> Sequence[str]:
        """See the base class."""
        return tasks.splits(self._engine)

    def tasks(self, split: str) -> list[Task]:
        """See the base class."""
        return tasks.of(self._engine, split)

    def start(self, task_id: str, seed: int | None, options: Mapping[str, Any]) -> StockEpisode:
        """See the base class."""
        domain, task = tasks.find(self._engine, task_id)
        return StockEpisode(domain, task, self._engine.environment(domain), options.get("max_messages", 200))


def _result(messages: list[Any], score: float, ended: bool) -> StepResult:
    text = "\n".join(f"{message.role}: {message.content}" for message in messages)
    return StepResult(text, score, ended, False, {"raw_score": score, "score": score, "success": score == 1.0})


ADAPTER = StockAdapter
