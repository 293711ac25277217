"""AgentGym's HTTP routes over our sessions, so that `agentenv` clients work: `http://host:port/agentgym/{env}`.

Same names and shapes as the originals, except that faults are problem documents with a status of their own (the
originals answer 200 with `{"error": …}`), and that every environment has the `close` that some originals lack.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Body as BodyOf
from fastapi.responses import JSONResponse

from env_servers.errors import ServiceError
from env_servers.front import problem
from env_servers.front.models import CreateSession, Step
from env_servers.front.service import Document, Service
from env_servers.sciworld.tasks import agentgym_ids

# These clients send no heartbeat and may wait long for a model; what they leave open ends an hour after its last use.
_KEPT = 3600.0
_MAX_SLOTS = 10_000
_LARGEST_ID = 2**53
_INTEGER = re.compile(r"[0-9]{1,18}", re.ASCII)

Body = Annotated[dict[str, Any], BodyOf()]


@dataclass
class _Slot:
    """What AgentGym calls an environment: at most one episode of ours at a time."""

    env: str
    document: Document | None = None
    used: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Facade:
    """Translates between AgentGym's requests and the service.

    Args:
        service: The service behind.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._slots: dict[int, _Slot] = {}
        self._keeper: asyncio.Task[None] | None = None

    def create(self, env: str) -> int:
        """Makes an environment without an episode.

        Raises:
            ServiceError: `unknown_env`, or `capacity`.
        """
        self._service.catalogue.facts(env)
        if len(self._slots) >= _MAX_SLOTS:
            raise ServiceError("capacity", "Too many environments are open; close some.", retry_after=60)
        number = secrets.randbelow(_LARGEST_ID)
        self._slots[number] = _Slot(env, used=self._now())
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())
        return number

    async def reset(self, env: str, number: int, index: int | None) -> Document:
        """Starts the episode that AgentGym numbers so (for other benchmarks: all splits in order)."""
        slot = self._slot(env, number)
        async with slot.lock:
            await self._end(slot)
            task_id = None if index is None else await self._task(env, index)
            options = _OPTIONS.get(env, {})
            body = CreateSession(env=env, task_id=task_id, options=options, client_id="agentgym")
            slot.document = await self._service.create(body, None)
        return slot.document

    async def step(self, env: str, number: int, action: Any) -> Document:
        """Executes an action.

        Raises:
            ServiceError: `unknown_session`, or what the service says.
        """
        slot = self._slot(env, number)
        async with slot.lock:
            document = self.document(env, number)
            step = Step(step_index=document["step_index"], action=action)
            reply = await self._service.step(document["session_id"], step)
            slot.document = {**document, **reply}
        return slot.document

    def document(self, env: str, number: int) -> Document:
        """Returns the episode of an environment with its last reply.

        Raises:
            ServiceError: `unknown_session`.
        """
        document = self._slot(env, number).document
        if document is None:
            raise ServiceError("unknown_session", f"The environment {number} has no episode yet; call reset first.")
        return document

    async def close(self, env: str, number: int) -> bool:
        """Ends an environment; returns whether there was one."""
        if number not in self._slots:
            return False
        slot = self._slot(env, number)
        del self._slots[number]
        async with slot.lock:
            await self._end(slot)
        return True

    def numbers(self, env: str) -> list[int]:
        """Returns the open environments."""
        return [number for number, slot in self._slots.items() if slot.env == env]

    def _slot(self, env: str, number: int) -> _Slot:
        slot = self._slots.get(number)
        if slot is None or slot.env != env:
            raise ServiceError("unknown_session", f"There is no environment {number} of {env}; call create first.")
        slot.used = self._now()
        return slot

    async def _task(self, env: str, index: int) -> str:
        if env in ("alfworld", "webshop"):
            return f"agentgym/{index}"  # these adapters know AgentGym's numbers
        if env == "sciworld":
            ids = agentgym_ids()
        else:
            lists = [await self._service.catalogue.tasks(env, split) for split in self._service.catalogue.splits(env)]
            ids = list(dict.fromkeys(task[0] for tasks in lists for task in tasks.tasks))
        if not 0 <= index < len(ids):
            raise ServiceError("unknown_task", f"{env} has the indices 0 to {len(ids) - 1}, there is no {index}.")
        return ids[index]

    async def _end(self, slot: _Slot) -> None:
        if slot.document is not None:
            await self._service.close(slot.document["session_id"])
            slot.document = None

    async def _keep(self) -> None:
        while self._slots:
            await asyncio.sleep(self._service.settings.lease_seconds / 3)
            for number, slot in list(self._slots.items()):
                if self._now() - slot.used > _KEPT:
                    await self.close(slot.env, number)
                elif slot.document is not None:
                    self._service.heartbeat([slot.document["session_id"]])

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def routes(service: Service) -> APIRouter:
    """Returns the routes of every benchmark served."""
    router = APIRouter(prefix="/agentgym", tags=["agentgym"], responses=problem.OPENAPI)
    facade = Facade(service)
    for env in service.catalogue.envs:
        _add_routes(router, facade, env)
    return router


def _add_routes(router: APIRouter, facade: Facade, env: str) -> None:
    key = "env_idx" if env == "webshop" else "id"
    shape = _SHAPES.get(env, _plain)

    async def create() -> JSONResponse:
        number = facade.create(env)
        return JSONResponse(number if env == "webshop" else {"id": number})

    async def reset(body: Body) -> JSONResponse:
        index = next((body[name] for name in ("data_idx", "game", "session_id") if body.get(name) is not None), None)
        document = await facade.reset(env, _number(body, key), None if index is None else _integer(index))
        reply = [document["observation"], None] if env == "webshop" else shape(document)
        return JSONResponse(reply)

    async def step(body: Body) -> JSONResponse:
        return JSONResponse(shape(await facade.step(env, _number(body, key), body.get("action"))))

    async def observation(id: int | None = None, env_idx: int | None = None) -> JSONResponse:
        return JSONResponse(facade.document(env, _number({"id": id, "env_idx": env_idx}, key))["observation"])

    async def available_actions(id: int | None = None, env_idx: int | None = None) -> JSONResponse:
        return JSONResponse(_actions(facade.document(env, _number({"id": id, "env_idx": env_idx}, key))))

    async def close(body: Body) -> JSONResponse:
        return JSONResponse(await facade.close(env, _number(body, key)))

    async def list_envs() -> JSONResponse:
        return JSONResponse(facade.numbers(env))

    async def alive() -> JSONResponse:
        return JSONResponse(f"This is environment {env}.")

    router.add_api_route(f"/{env}/", alive, methods=["GET"])
    for handler in (create, reset, step, close):
        router.add_api_route(f"/{env}/{handler.__name__}", handler, methods=["POST"])
    for handler in (observation, available_actions, list_envs):
        router.add_api_route(f"/{env}/{handler.__name__}", handler, methods=["GET"])


def _number(body: dict[str, Any], key: str) -> int:
    if body.get(key) is None:
        raise ServiceError("bad_request", f"The request names no environment; send `{key}`.")
    return _integer(body[key])


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    raise ServiceError("bad_request", f"{str(value)[:50]!r} is not an integer.")


def _done(document: Document) -> bool:
    return bool(document["terminated"] or document["truncated"])


def _actions(document: Document) -> Any:
    info = document["info"]
    return info.get("admissible_actions", info.get("available_actions", []))


def _plain(document: Document) -> Document:
    return {**_common(document), "score": document["info"]["score"]}


def _common(document: Document) -> Document:
    return {"observation": document["observation"], "reward": document["reward"], "done": _done(document)}


def _sciworld(document: Document) -> Document:
    # AgentGym's score and its differences count to 100.
    name, _, variation = document["task_id"].partition("/")
    extra: Document = {"task_name": name, "var_num": int(variation), "deleted": False}
    task = extra["task_description"] = document["info"].get("task_description", "")
    # These clients put the task before the observation themselves.
    extra["observation"] = document["observation"].removeprefix(task).lstrip("\n")
    score = round(document["info"]["raw_score"])
    return {**_common(document), "reward": round(100 * document["reward"]), "score": score, **extra}


def _alfworld(document: Document) -> Document:
    return {**_common(document), "available_actions": _actions(document), "task_type": document["category"]}


def _webshop(document: Document) -> Document:
    return {"state": document["observation"], "reward": document["reward"], "done": _done(document), "info": None}


# AgentGym plays ALFWorld 0.3, with its old commands, and drops the banner.
_OPTIONS: dict[str, Document] = {
    "alfworld": {"admissible_actions": True, "banner": False, "command_style": "put"},
}
_SHAPES = {"sciworld": _sciworld, "alfworld": _alfworld, "webshop": _webshop}
