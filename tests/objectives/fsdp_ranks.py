"""What each of two processes runs in `test_two_ranks`: FSDP2 shards, one packed forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from objectives_kit import Say, episode, make_tokenizer, tiny_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.packing import dense_mask, hidden_states, pack
from cope_train.objectives.projection import Head, score
from cope_train.objectives.rows import Places, Sample, forecast_tokens, policy_tokens


def loss_of(model: torch.nn.Module) -> torch.Tensor:
    tokenizer = make_tokenizer()
    chat = ChatPieces.probe(tokenizer)
    record = episode(tokenizer, chat, [Say("open door"), Say("go to kitchen"), Say("look around")])
    branches = build_branches(record, chat, BranchOptions())
    samples, layout = [Sample(record, branches, 1.0, [True] * len(branches))], pack([record], [branches])
    hidden = hidden_states(model, model, layout, dense_mask(layout))
    places, head = Places(layout.trajectories, layout.branches), Head.of(model)
    tokens = (policy_tokens(samples, places)[0], forecast_tokens(samples, places)[0])
    parts = [score(hidden[s], t, head).log_probs.mean() for s, t in (x.tensors(hidden.device) for x in tokens)]
    return -torch.stack(parts).sum()


def sharded() -> dict[str, dict[str, Any]]:
    """Returns loss and gradients of sharded models, by kind; to be called on both ranks of a group."""
    mesh = init_device_mesh("cpu", (2,))
    found: dict[str, dict[str, Any]] = {}
    for kind in ("llama", "qwen2"):  # tied and untied head
        model = tiny_model(kind)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        loss = loss_of(model)
        loss.backward()
        gradients = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
        found[kind] = {"loss": loss.item(), "gradients": gradients}
    return found
