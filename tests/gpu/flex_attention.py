"""FlexAttention on a GPU against float32: the packed loss and its gradient, with the quickstart's model.

Four ways to the same joint loss (policy, forecasting, ensemble) on the same episodes of random ids: float32 with a
dense mask, which is the reference; float32 with FlexAttention; bfloat16 with FlexAttention; float32 with a sequence a
branch. Prints one JSON line a way; the exit code is 1 where float32 is off by more than 1e-3 or bfloat16 by more than
3e-2 (relative).

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
    reference: tuple[float, torch.Tensor] | None = None
    good = True
    for name, dtype, packed, flex, bound in (
        ("float32 dense", torch.float32, True, False, 0.0),
        ("float32 flex", torch.float32, True, True, 1e-3),
        ("bfloat16 flex", torch.bfloat16, True, True, 3e-2),
        ("float32 unpacked", torch.float32, False, False, 1e-3),
    ):
        loss, gradient = measure(samples, device, dtype, packed, flex)
        reference = reference or (loss, gradient)
        off = abs(loss - reference[0]) / abs(reference[0])
        difference = ((gradient - reference[1]).norm() / reference[1].norm()).item()
        cosine = torch.nn.functional.cosine_similarity(gradient, reference[1], dim=0).item()
        line = {"way": name, "loss": loss, "loss_off": off, "gradient_off": difference, "gradient_cosine": cosine}
        print(json.dumps(line), flush=True)
        good &= name == "float32 dense" or (off <= bound and (dtype != torch.float32 or difference <= bound))
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
