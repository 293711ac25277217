"""The two customers: the benchmark's own, played by a language model, and the scripted one."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from env_servers.tau2 import engine  # noqa: F401 - sets what tau2 reads while it is imported
from env_servers.tau2.script import Reply, Script, UserFailed

from tau2.data_model.message import MultiToolMessage, ToolCall, ToolMessage, UserMessage  # isort: skip
from tau2.user.user_simulator import UserSimulator  # isort: skip


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible endpoint that plays the customer.

    Attributes:
        base_url: E.g. `http://127.0.0.1:8001/v1`.
        model: Model name there.
        key: API key.
        temperature: Sampling temperature.
        timeout: Seconds for one answer.
        retries: How often a failed request is tried again.
    """

    base_url: str
    model: str
    key: str
    temperature: float = 0.0
    timeout: float = 60.0
    retries: int = 2

    def arguments(self, seed: int | None) -> Mapping[str, Any]:
        """Returns what the package passes on with each request."""
        kept = {"api_base": self.base_url, "api_key": self.key, "temperature": self.temperature}
        kept.update(timeout=self.timeout, num_retries=self.retries)
        return {**kept, "seed": seed} if seed is not None else kept


class EndpointUser(UserSimulator):
    """The benchmark's customer, with its published guidelines, on any endpoint.

    Attributes:
        log: The answers since it was last emptied, as JSON values.
        script: Answers to give in place of asking the model, in the form of `log`, to rebuild a conversation.
    """

    def __init__(self, task: Any, tools: list[Any] | None, endpoint: Endpoint, seed: int | None) -> None:
        super().__init__(
            tools=tools,
            instructions=str(task.user_scenario),
            llm=f"openai/{endpoint.model}",
            llm_args=dict(endpoint.arguments(seed)),
        )
        self._key = endpoint.key
        self.log: list[Any] = []
        self.script: list[Any] = []

    def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
        """Asks the model, or goes on along the script.

        Raises:
            UserFailed: It did not answer, or with nothing usable; `state` is as it was.
        """
        trial = state.model_copy(update={"messages": list(state.messages)})
        if self.script:
            answer = _from_json(self.script.pop(0))
            trial.messages += [*getattr(message, "tool_messages", [message]), answer]
        else:
            answer, trial = self._ask(message, trial)
        self.log.append(_to_json(answer))
        return answer, trial

    def _ask(self, message: Any, state: Any) -> tuple[Any, Any]:
        try:
            answer, state = super().generate_next_message(message, state)
        except Exception as error:  # litellm raises what its providers raise; all of it means: no customer
            text = str(error).replace(self._key, "…") if self._key else str(error)
            raise UserFailed(f"{type(error).__name__}: {text[:300]}") from error
        if answer.is_tool_call():
            if not self.tools:
                raise UserFailed("the model called a tool, but this customer has none")
            return answer, state
        answer.content = re.sub(r"<think>.*?</think>", "", answer.content or "", flags=re.DOTALL).strip()
        if not answer.content:
            raise UserFailed("the model answered nothing")
        return answer, state


def _to_json(answer: Any) -> Any:
    calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in answer.tool_calls or []]
    return {"content": answer.content, "calls": calls}


def _from_json(kept: Any) -> Any:
    calls = [ToolCall(requestor="user", **call) for call in kept["calls"]]
    return UserMessage(role="user", content=kept["content"], tool_calls=calls or None, cost=0.0)


class ScriptedUser:
    """`Script` as the package's orchestrator expects a customer."""

    def __init__(self, task: Any, tools: list[Any] | None) -> None:
        self.log: list[Any] = []  # nothing comes from outside
        self.script: list[Any] = []
        scenario = task.user_scenario.instructions
        structured = not isinstance(scenario, str)
        self._script = Script(
            reason=scenario.reason_for_call if structured else scenario,
            known=(scenario.known_info or "") if structured else "",
            unknown=(scenario.unknown_info or "") if structured else "",
            tools=[tool.name for tool in tools or []],
        )
        self._calls = 0

    def get_init_state(self, message_history: list[Any] | None = None) -> Any:
        """Returns whether the customer has spoken; words of a given history do not count."""
        return False

    def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
        """Follows the script."""
        if isinstance(message, MultiToolMessage):
            reply = self._script.report([part.content for part in message.tool_messages])
        elif isinstance(message, ToolMessage):
            reply = self._script.report([message.content])
        else:
            reply = self._script.answer(message.content) if state else self._script.opening()
        return self._message(reply), True

    def stop(self, message: Any = None, state: Any = None) -> None:
        """Nothing to end."""

    def set_seed(self, seed: int) -> None:
        """Nothing to seed."""

    def _message(self, reply: Reply) -> Any:
        if not reply.tool:
            return UserMessage(role="user", content=reply.text, cost=0.0)
        self._calls += 1
        call = ToolCall(id=f"user-{self._calls}", name=reply.tool, arguments=reply.arguments, requestor="user")
        return UserMessage(role="user", tool_calls=[call], cost=0.0)
