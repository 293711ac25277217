"""Language agents in long interactive tasks, as Gymnasium environments.

Importing the package registers `cope/SciWorld-v0` and its siblings:

    import cope_gym, gymnasium as gym

    env = gym.make("cope/SciWorld-v0", task_id="boil/0")
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("look around")
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cope_gym.errors import CopeError, InfrastructureError, InputError, LostSession, SessionError
from cope_gym.registration import register_all

if TYPE_CHECKING:
    from cope_gym.client import Client
    from cope_gym.env import CopeEnv, resume
    from cope_gym.tasklist import TaskList, tasks

__version__ = version("cope-gym")
__all__ = [
    "Client",
    "CopeEnv",
    "CopeError",
    "InfrastructureError",
    "InputError",
    "LostSession",
    "SessionError",
    "TaskList",
    "resume",
    "tasks",
]

_HOMES = {"Client": "client", "CopeEnv": "env", "resume": "env", "TaskList": "tasklist", "tasks": "tasklist"}


def __getattr__(name: str) -> Any:
    """Loads the HTTP client when it is first used: registering needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cope_gym' has no attribute '{name}'")
    return getattr(import_module(f"cope_gym.{_HOMES[name]}"), name)


register_all()
