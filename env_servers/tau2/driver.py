"""One conversation, driven turn by turn in the caller's thread with the package's own orchestrator."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import copy
import time
from typing import Any

from env_servers.tau2 import engine  # noqa: F401 - sets what tau2 reads while it is imported
from env_servers.tau2.actions import STOP, Call

from tau2.agent.base import is_valid_agent_history_message  # isort: skip
from tau2.data_model.message import AssistantMessage, ToolCall  # isort: skip
from tau2.data_model.simulation import SimulationRun, TerminationReason  # isort: skip
from tau2.data_model.tasks import RewardType  # isort: skip
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation  # isort: skip
from tau2.orchestrator.orchestrator import Orchestrator, Role  # isort: skip


class _Agent:
    """Says what the caller wants said; the orchestrator asks it when it is the agent's turn."""

    def __init__(self, may_stop: bool) -> None:
        self.pending: Any | None = None
        self._may_stop = may_stop

    def get_init_state(self, message_history: list[Any] | None = None) -> None:
        return None

    def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
        said, self.pending = self.pending, None
        return said, state

    def is_stop(self, message: Any) -> bool:
        return self._may_stop and bool(message.content) and STOP in message.content

    def stop(self, message: Any = None, state: Any = None) -> None:
        pass

    def set_seed(self, seed: int) -> None:
        pass


class Conversation:
    """A task being played.

    Args:
        domain: Its domain.
        task: The package's task.
        environment: A fresh environment.
        user: The customer.
        max_messages: Messages of all sides after which the conversation is cut, as the package counts them.
        max_errors: Failed tool calls after which it is cut.
        agent_may_stop: Whether the agent can end it by saying `###STOP###`.
    """

    def __init__(
        self,
        domain: str,
        task: Any,
        environment: Any,
        user: Any,
        max_messages: int,
        max_errors: int,
        agent_may_stop: bool,
    ) -> None:
        self.domain = domain
        self.task = task
        self._agent = _Agent(agent_may_stop)
        self._calls = 0
        self._seen = 0
        self._orchestrator = Orchestrator(
            domain=domain,
            agent=self._agent,
            user=user,
            environment=environment,
            task=task,
            max_steps=max_messages,
            max_errors=max_errors,
        )

    def begin(self) -> None:
        """Lets the customer speak first."""
        self._orchestrator.initialize()
        self.proceed()

    def say(self, text: str) -> None:
        """Sends a message to the customer and waits for the answer."""
        self._agent.pending = AssistantMessage(role="assistant", content=text, cost=0.0)
        self.proceed()

    def call(self, calls: list[Call]) -> None:
        """Calls tools and waits for their results."""
        made: list[Any] = []
        for call in calls:
            self._calls += 1
            made.append(ToolCall(id=f"call-{self._calls}", name=call.name, arguments=call.arguments))
        self._agent.pending = AssistantMessage(role="assistant", tool_calls=made, cost=0.0)
        self.proceed()

    def proceed(self) -> None:
        """Goes on until it is the agent's turn or the end; after a failure of the customer, from where that was."""
        running = self._orchestrator
        while not running.done and (running.to_role != Role.AGENT or self._agent.pending is not None):
            running.step()
            if running.done or running.to_role == Role.ENV:
                continue
            if running.step_count >= running.max_steps:
                running.done, running.termination_reason = True, TerminationReason.MAX_STEPS
            elif running.num_errors >= running.max_errors:
                running.done, running.termination_reason = True, TerminationReason.TOO_MANY_ERRORS

    @property
    def reason(self) -> str:
        """Why the conversation ended, "" while it runs."""
        return str(self._orchestrator.termination_reason.value) if self._orchestrator.done else ""

    @property
    def counts(self) -> tuple[int, int]:
        """Messages and failed tool calls so far."""
        return self._orchestrator.step_count, self._orchestrator.num_errors

    def news(self) -> list[Any]:
        """Returns the messages that the agent has not seen yet, its own left out (its greeting is shown)."""
        trajectory = self._orchestrator.trajectory
        fresh = [m for m in trajectory[self._seen :] if is_valid_agent_history_message(m)]
        shown = [m for m in fresh if m.role != "assistant" or self._seen == 0]
        self._seen = len(trajectory)
        return shown

    def grade(self) -> Any:
        """Returns the package's reward, by the task's published basis."""
        messages = copy.deepcopy(self._orchestrator.trajectory)  # in order; the package sorts by clock time
        for number, message in enumerate(messages):
            message.turn_idx = number
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        run = SimulationRun(
            id="cope",
            task_id=str(self.task.id),
            start_time=now,
            end_time=now,
            duration=0.0,
            termination_reason=self._orchestrator.termination_reason,
            messages=messages,
        )
        judged = RewardType.NL_ASSERTION in self.task.evaluation_criteria.reward_basis
        kind = EvaluationType.ALL_WITH_NL_ASSERTIONS if judged else EvaluationType.ALL
        return evaluate_simulation(run, self.task, kind, solo_mode=False, domain=self.domain)


def needs_judge(task: Any) -> bool:
    """Whether a language model would have to grade the task (40 retail tasks of upstream 1.0.x)."""
    criteria = task.evaluation_criteria
    return bool(criteria and RewardType.NL_ASSERTION in criteria.reward_basis and criteria.nl_assertions)
