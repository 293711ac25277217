"""Bodies of requests, as FastAPI checks and documents them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_SEED = 2**63 - 1
_MAX_STEPS = 1_000_000
_BATCH = 8192

Name = Annotated[str, Field(min_length=1, max_length=200)]
SessionId = Annotated[str, Field(min_length=1, max_length=100)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CreateSession(_Body):
    """Starts an episode. Without a task the seed picks one of the split; without a seed one is drawn."""

    env: Name
    task_id: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    split: Name | None = None
    seed: Annotated[int, Field(ge=0, le=_SEED)] | None = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    max_steps: Annotated[int, Field(ge=1, le=_MAX_STEPS)] | None = None
    client_id: Annotated[str, Field(max_length=200)] | None = None


class Step(_Body):
    """The next action of a session, or a repetition of the last one."""

    step_index: Annotated[int, Field(ge=0, le=_MAX_STEPS)]
    action: Any
    epoch: Annotated[int, Field(ge=1, le=2**31)] = 1


class StepOf(Step):
    """A step of one of several sessions."""

    session_id: SessionId


class StepMany(_Body):
    """Steps of several sessions in one round trip, executed side by side."""

    steps: Annotated[list[StepOf], Field(max_length=_BATCH)]


class Heartbeat(_Body):
    """The sessions whose leases to renew."""

    session_ids: Annotated[list[SessionId], Field(max_length=_BATCH)]
