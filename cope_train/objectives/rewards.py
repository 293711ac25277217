"""The ideas as rewards, per trajectory: always success times something, so that a lost episode earns nothing.

Without the success a policy is paid for repeating itself (what repeats is easy to forecast) or for being unsure (then
any forecast knows better than it does); those forms are not offered.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

MAX_GAIN = 1.0  # nats


def forecast_reward(success: bool, members: Sequence[torch.Tensor]) -> float:
    """Success × mean over covered turns of exp(mean token log-prob of the members).

    Args:
        success: Whether the episode was won.
        members: Per covered turn the log-probs that all its members gave to the tokens of its action, in any shape.

    Returns:
        In [0, 1]; 0 where no turn is covered.
    """
    if not success or not members:
        return 0.0
    return torch.stack([turn.float().mean().exp() for turn in members]).mean().item()


def ensemble_reward(success: bool, gain: torch.Tensor, limit: float = MAX_GAIN) -> float:
    """Success × clipped mean gain of q^F over π.

    Args:
        success: Whether the episode was won.
        gain: log q^F − log π of the sampled token at every covered position, shape (P,).
        limit: The mean is clipped to [−limit, limit].
    """
    if not success or not gain.numel():
        return 0.0
    return gain.float().mean().clamp(-limit, limit).item()
