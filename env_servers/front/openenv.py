"""OpenEnv's protocol over our sessions, so that `openenv` clients work: base address `http://host:port/openenv/{env}`.

A WebSocket is one environment: `reset` starts an episode (and ends the one before), `step` takes `{"action": …}`. What
`reset` accepts beyond OpenEnv's `seed` are our own names: `task_id`, `split`, `options`, `max_steps`.
"""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from env_servers.errors import ServiceError
from env_servers.front import problem
from env_servers.front.models import CreateSession, Step
from env_servers.front.service import Document, Service

_ACTION = {
    "type": "object",
    "required": ["action"],
    "properties": {
        "action": {"description": "The action, as the benchmark words it."},
        "metadata": {"type": "object"},
    },
}
_OBSERVATION = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "info": {"type": "object"},
        "metadata": {"type": "object"},
    },
}
_STATE = {
    "type": "object",
    "properties": {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}},
}
_RESET = ("task_id", "split", "seed", "options", "max_steps")
_CODES = {"capacity": "CAPACITY_REACHED", "draining": "CAPACITY_REACHED", "worker_failed": "FACTORY_ERROR"}


class _MessageError(Exception):
    """A message that cannot be understood, with OpenEnv's code for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Conversation:
    """One WebSocket."""

    def __init__(self, service: Service, env: str) -> None:
        self._service = service
        self._env = env
        self._session: str | None = None
        self._last: Document = {}

    async def answer(self, text: str) -> Document | None:
        """Returns the reply to a message, `None` when the client says good-bye."""
        try:
            kind, data = _message(text)
            if kind == "close":
                return None
            if kind == "reset":
                return await self._reset(data)
            if kind == "step":
                return await self._step(data)
            if kind == "state":
                count = self._last.get("step_index", 0)
                state = {"episode_id": self._session, "step_count": count, "task_id": self._last.get("task_id")}
                return {"type": "state", "data": state}
            raise _MessageError("UNKNOWN_TYPE", f"There is no message {kind!r}; send reset, step, state or close.")
        except _MessageError as error:
            return _error(error.code, str(error))
        except ValidationError as error:
            return _error("VALIDATION_ERROR", error.errors()[0]["msg"])
        except ServiceError as error:
            return _error(_CODES.get(error.type, "EXECUTION_ERROR"), f"{error.type}: {error.detail}")

    async def end(self) -> None:
        """Ends the episode."""
        if self._session is not None:
            await self._service.close(self._session)
            self._session = None

    def keep(self) -> None:
        """Renews the lease."""
        if self._session is not None:
            self._service.heartbeat([self._session])

    async def _reset(self, data: Document) -> Document:
        await self.end()
        chosen = {name: data[name] for name in _RESET if data.get(name) is not None}
        body = CreateSession(env=self._env, client_id="openenv", **chosen)
        self._last = await self._service.create(body, None)
        self._session = self._last["session_id"]
        return _observation(self._last)

    async def _step(self, data: Document) -> Document:
        if self._session is None:
            raise _MessageError("SESSION_ERROR", "There is no episode yet; send reset first.")
        if "action" not in data:
            raise _MessageError("VALIDATION_ERROR", 'The step has no action; send {"action": …}.')
        step = Step(step_index=self._last["step_index"], action=data["action"])
        reply = await self._service.step(self._session, step)
        self._last = {**self._last, **reply}
        return _observation(self._last)


def routes(service: Service) -> APIRouter:
    """Returns the routes of every benchmark served."""
    router = APIRouter(prefix="/openenv", tags=["openenv"], responses=problem.OPENAPI)

    @router.get("/{env}/health")
    async def health(env: str) -> Document:  # pyright: ignore[reportUnusedFunction]
        service.catalogue.facts(env)
        return {"status": "healthy"}

    @router.get("/{env}/metadata")
    async def metadata(env: str) -> Document:  # pyright: ignore[reportUnusedFunction]
        facts = service.catalogue.facts(env)
        description = f"{env} served by CoPE Gym. {facts.reward_scale}".strip()
        return {"name": env, "description": description, "version": version("cope-gym")}

    @router.get("/{env}/schema")
    async def schema(env: str) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        service.catalogue.facts(env)
        return JSONResponse({"action": _ACTION, "observation": _OBSERVATION, "state": _STATE})

    @router.websocket("/{env}/ws")
    async def talk(socket: WebSocket, env: str) -> None:  # pyright: ignore[reportUnusedFunction]
        await socket.accept()
        conversation = _Conversation(service, env)
        try:
            while (text := await _receive(socket, conversation, service.settings.lease_seconds / 3)) is not None:
                reply = await conversation.answer(text)
                if reply is None:
                    break
                await socket.send_text(json.dumps(reply, ensure_ascii=False))
            await socket.close()
        except WebSocketDisconnect:
            pass  # a client that is gone needs no answer; its episode ends below
        finally:
            await conversation.end()

    return router


async def _receive(socket: WebSocket, conversation: _Conversation, pause: float) -> str | None:
    """Returns the next message; while the client thinks, its lease is renewed (the connection shows that it lives)."""
    receiving = asyncio.ensure_future(socket.receive_text())
    try:
        while not (await asyncio.wait({receiving}, timeout=pause))[0]:
            conversation.keep()
        return receiving.result()
    finally:
        receiving.cancel()


def _message(text: str) -> tuple[str, Document]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _MessageError("INVALID_JSON", f"Not JSON: {error}") from error
    match message:
        case {"type": str(kind), **rest}:
            data = rest.get("data", {})
        case _:
            raise _MessageError("VALIDATION_ERROR", 'A message is an object with "type" and "data".')
    if not isinstance(data, dict):
        raise _MessageError("VALIDATION_ERROR", '"data" must be an object.')
    return kind, {str(key): value for key, value in data.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _observation(document: Document) -> Document:
    metadata = {name: document[name] for name in ("session_id", "env", "task_id", "split", "step_index", "truncated")}
    observation = {"text": document["observation"], "info": document["info"], "metadata": metadata}
    done = bool(document["terminated"] or document["truncated"])
    data = {"observation": observation, "reward": document["reward"], "done": done, "metadata": metadata}
    return {"type": "observation", "data": data}


def _error(code: str, message: str) -> Document:
    return {"type": "error", "data": {"message": message, "code": code}}
