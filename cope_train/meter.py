"""Sums over micro-batches and ranks, for metrics that are ratios."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Meter:
    """Adds up numerators and denominators; a ratio of sums does not depend on how the batch was cut.

    Args:
        names: All metrics there can be. They are the same on all ranks, so that one reduction carries them.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.sums = dict.fromkeys(names, (0.0, 0.0))

    def add(self, name: str, total: torch.Tensor | float, count: float = 1.0) -> None:
        """Adds to a metric.

        Args:
            name: One of the names.
            total: What is added to the numerator.
            count: What is added to the denominator.
        """
        before = self.sums[name]
        # Tensors stay on their device until `take`, so that no metric waits for the accelerator.
        self.sums[name] = (
            before[0] + (total.detach() if isinstance(total, torch.Tensor) else total),
            before[1] + count,
        )

    def take(self, device: torch.device, reduce: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
        """Reduces over ranks and starts anew.

        Args:
            device: Where the reduction runs.
            reduce: Sums a tensor over ranks.

        Returns:
            The ratio of every metric that counted anything.
        """
        columns = [
            [torch.as_tensor(v, dtype=torch.float32, device=device) for v in pair] for pair in self.sums.values()
        ]
        totals = reduce(torch.stack([torch.stack(pair) for pair in columns])).tolist()
        ratios = {name: total / count for name, (total, count) in zip(self.sums, totals, strict=True) if count}
        self.sums = dict.fromkeys(self.sums, (0.0, 0.0))
        return ratios
