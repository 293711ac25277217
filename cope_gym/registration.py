"""The Gymnasium ids of the benchmarks. Importing `cope_gym` registers them."""

from __future__ import annotations

import gymnasium as gym

IDS = {
    "sciworld": "cope/SciWorld-v0",
    "alfworld": "cope/ALFWorld-v0",
    "webshop": "cope/WebShop-v0",
    "appworld": "cope/AppWorld-v0",
    "tau2": "cope/Tau2-v0",
    "mind2web": "cope/Mind2Web-v0",
}
"""Short environment name → Gymnasium id."""

_NONDETERMINISTIC = {"tau2"}  # its simulated customer is a language model


def register_all() -> None:
    """Registers every benchmark; twice is harmless."""
    for name, id in IDS.items():
        if id not in gym.registry:
            gym.register(  # pyright: ignore[reportUnknownMemberType]
                id=id,
                entry_point="cope_gym.env:CopeEnv",
                vector_entry_point="cope_gym.vector:CopeVectorEnv",
                nondeterministic=name in _NONDETERMINISTIC,
                kwargs={"env": name},
            )
