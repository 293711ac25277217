"""A policy behind any OpenAI-compatible chat endpoint (`openai:MODEL`): hosted models, vLLM, llama.cpp, Ollama.

Retries are bounded and only for faults that pass: connection, time-out, rate limit, 5xx. A refused key, an unknown
model or an exhausted quota stops the run at once with a sentence; the finished episodes are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

import requests
from requests.adapters import HTTPAdapter

from cope_gym.errors import InfrastructureError, InputError
from cope_gym.evaluate.policies import PolicySpec, Prompt, Reply, register, take

DEFAULTS: Mapping[str, Any] = {
    "base_url": "",
    "api_key_env": "OPENAI_API_KEY",
    "temperature": 1.0,
    "top_p": 1.0,
    "max_tokens": 512,
    "reasoning_effort": "",
    "send_seed": False,
    "timeout": 120.0,
    "attempts": 6,
}
_NOT_IN_RESULT = ("api_key_env", "timeout", "attempts")
_PASSING = frozenset({408, 409, 425, 429})
_LONGEST_WAIT = 60.0


class Endpoint:
    """Chat completions over HTTP. Thread-safe: the runner calls `act` from several threads.

    Args:
        spec: `model` is the served model's name. Settings: `base_url` (else `OPENAI_BASE_URL`), `api_key_env` (name of
            the variable with the key), `temperature`, `top_p`, `max_tokens`, `reasoning_effort`, `send_seed`,
            `timeout`, `attempts`.
        sleep: Waits between attempts.
    """

    batch_size = 1

    def __init__(self, spec: PolicySpec, sleep: Callable[[float], None] = time.sleep) -> None:
        if not spec.model:
            raise InputError("Name the model of the endpoint: --policy openai:MODEL.", type="bad_setting")
        self._options = take(spec, **DEFAULTS)
        base = self._options["base_url"] or os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
        self._url = base.rstrip("/") + "/chat/completions"
        self._key = os.environ.get(self._options["api_key_env"], "")
        self._sleep = sleep
        self._session = requests.Session()
        adapter = HTTPAdapter(pool_connections=1, pool_maxsize=256)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)
        self.name = spec.model
        recorded = {key: value for key, value in self._options.items() if key not in _NOT_IN_RESULT}
        self.settings: Mapping[str, Any] = recorded | {"model": spec.model, "base_url": base}

    def act(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Asks for one completion a prompt."""
        return [self._complete(prompt) for prompt in prompts]

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()

    def _complete(self, prompt: Prompt) -> Reply:
        jitter = Random(prompt.seed)
        attempts = max(1, self._options["attempts"])
        fault = ""
        for attempt in range(attempts):
            outcome, least_wait = self._try(prompt)
            if isinstance(outcome, Reply):
                return outcome
            fault = outcome
            if attempt + 1 < attempts:
                wait = max(least_wait, min(_LONGEST_WAIT, 2.0**attempt))
                self._sleep(wait * (1 + 0.25 * jitter.random()))
        detail = f"Endpoint of {self.name}: {fault} ({attempts} attempts)."
        raise InfrastructureError(detail, type="endpoint", retryable=True)

    def _try(self, prompt: Prompt) -> tuple[Reply | str, float]:
        """Returns the reply, or what went wrong and how long the server asks to wait."""
        try:
            response = self._session.post(
                self._url, json=self._body(prompt), headers=self._headers(), timeout=self._options["timeout"]
            )
        except requests.RequestException as error:
            return f"{type(error).__name__} at {self._url}", 0.0
        if response.status_code == 200:
            return _reply(response) or "the reply is not a chat completion", 0.0
        if final := _final(response, self.name):
            return final, 0.0
        return f"HTTP {response.status_code}: {_message(response)}", _retry_after(response)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(prompt.messages),
            "temperature": self._options["temperature"],
            "top_p": self._options["top_p"],
            "max_tokens": self._options["max_tokens"],
        }
        if self._options["send_seed"]:
            body["seed"] = prompt.seed
        if effort := self._options["reasoning_effort"]:
            # Reasoning models count hidden tokens and refuse `max_tokens` and sampling settings.
            body = {key: body[key] for key in ("model", "messages")}
            body |= {"max_completion_tokens": self._options["max_tokens"], "reasoning_effort": effort}
        return body

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}


def _reply(response: requests.Response) -> Reply | None:
    try:
        data: Any = response.json()
        choice = data["choices"][0]
        text = choice["message"].get("content") or ""
        usage: Any = data.get("usage") or {}
        tokens = usage.get("completion_tokens") or 0
        return Reply(str(text), tokens=int(tokens), truncated=choice.get("finish_reason") == "length")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def _final(response: requests.Response, model: str) -> Reply | None:
    """Handles the statuses that another attempt cannot change; `None` means: try again."""
    status, message = response.status_code, _message(response)
    code = _code(response)
    if status == 402 or "insufficient_quota" in code:
        raise InputError(
            f"The quota of {model} is exhausted ({message}); finished episodes are kept, continue later.", type="quota"
        )
    if status in _PASSING or status >= 500:
        return None
    if "context_length" in code or "maximum context length" in message.lower():
        return Reply("", truncated=True, give_up=True)
    if status == 400:
        raise InfrastructureError(f"Endpoint of {model} refused the request (HTTP 400: {message}).", type="endpoint")
    raise InputError(
        f"Endpoint of {model} answers HTTP {status} ({message}); check base_url, key and model name.", type="endpoint"
    )


def _error(response: requests.Response) -> Mapping[str, Any]:
    try:
        data = response.json()
    except ValueError:
        return {}
    if not isinstance(data, dict):
        return {}
    body = cast("dict[str, Any]", data)
    error = body.get("error", body)
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}


def _message(response: requests.Response) -> str:
    return str(_error(response).get("message") or response.text or response.reason)[:300]


def _code(response: requests.Response) -> str:
    error = _error(response)
    return f"{error.get('code')} {error.get('type')}"


def _retry_after(response: requests.Response) -> float:
    try:
        return min(_LONGEST_WAIT, float(response.headers.get("Retry-After", "0")))
    except ValueError:
        return 0.0


register("openai", Endpoint)
