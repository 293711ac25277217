"""FlexAttention on a GPU against float32: the packed loss and its gradient, with the quickstart's model.

Five ways to the same joint loss (policy, forecasting, ensemble) on the same episodes of random ids: with a dense
mask, with FlexAttention, with a sequence a branch, in float32; the first two in bfloat16. Each is compared with the
dense mask in its own precision. Prints one JSON line a way; the exit code is 1 where a loss is off by more than 1e-3,
or a gradient by more than 2e-3 in float32 or 0.25 in bfloat16 (relative; on random ids bfloat16 itself is off by
0.75).

    python tests/gpu/flex_attention.py
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from cope_train.bench_objectives import joint_loss, make_sample
from cope_train.models import quickstart_model
from cope_train.objective_passes import Passes, PassOptions
from cope_train.objectives.rows import Sample

TURNS, BATCH, HORIZON = 6, 4, 3


def main() -> int:
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    rng = random.Random(0)
    samples = [make_sample(TURNS - i % 2, HORIZON, 49152, rng) for i in range(BATCH)]
    references: dict[torch.dtype, tuple[float, torch.Tensor]] = {}
    good = True
    for name, dtype, packed, flex in (
        ("float32 dense", torch.float32, True, False),
        ("float32 flex", torch.float32, True, True),
        ("float32 unpacked", torch.float32, False, False),
        ("bfloat16 dense", torch.bfloat16, True, False),
        ("bfloat16 flex", torch.bfloat16, True, True),
    ):
        loss, gradient = measure(samples, device, dtype, packed, flex)
        known, direction = references.setdefault(dtype, (loss, gradient))
        off = abs(loss - known) / abs(known)
        difference = ((gradient - direction).norm() / direction.norm()).item()
        exact = references[torch.float32][1]
        line = {
            "way": name,
            "loss": loss,
            "loss_off": off,
            "gradient_off": difference,
            "gradient_cosine_to_float32": torch.nn.functional.cosine_similarity(gradient, exact, dim=0).item(),
        }
        print(json.dumps(line), flush=True)
        good &= off <= 1e-3 and difference <= (2e-3 if dtype == torch.float32 else 0.25)
    return 0 if good else 1


def measure(
    samples: list[Sample], device: torch.device, dtype: torch.dtype, packed: bool, flex: bool
) -> tuple[float, torch.Tensor]:
    """The loss, and the gradient of all weights in one vector."""
    model: Any = AutoModelForCausalLM.from_pretrained(quickstart_model(), dtype=dtype).to(device).train()
    passes = Passes(model, device, 0, PassOptions(packed=packed))
    if not flex:
        passes.flex = False
    if packed:
        hidden = passes.packed(model, samples)
    else:
        hidden = passes.separate(model, samples, passes.run_alone(samples, learn=None, joint=True)).whole()
    loss = joint_loss(hidden, samples)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


if __name__ == "__main__":
    sys.exit(main())
