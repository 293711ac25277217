"""How each benchmark's published results were sampled; what `cope eval` does unless told otherwise.

Turns, tokens a turn and sampling are part of a number: all of them stand in every result file. The values are those of
the CoPE evaluation scripts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """One benchmark's published protocol.

    Attributes:
        max_turns: Action turns of an episode.
        max_tokens: Tokens of a turn.
        temperature: Sampling temperature.
        samples: Episodes a task.
        observation_chars: Where observations are cut, the first one and later ones.
    """

    max_turns: int
    max_tokens: int
    temperature: float = 1.0
    samples: int = 1
    observation_chars: tuple[int, int] = (4000, 2000)


PUBLISHED = {
    "alfworld": Protocol(30, 200),
    "appworld": Protocol(30, 1024, temperature=0.4),
    "mind2web": Protocol(50, 4096, temperature=0.0, observation_chars=(16_000, 16_000)),
    "sciworld": Protocol(30, 200),
    "tau2": Protocol(200, 1024, temperature=0.0, samples=4),
    "webshop": Protocol(15, 512),
}


def published(env: str, max_turns: int) -> Protocol:
    """Returns the protocol of an environment; one without a published protocol gets the service's step limit."""
    return PUBLISHED.get(env, Protocol(max_turns, 512))
