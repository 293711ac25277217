"""Branches: what is asked, what is the target, and that the target's ids are the sampled ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from objectives_kit import ALTERNATING, CHATML, Say, episode, make_tokenizer

from cope_train.objectives.branches import BranchOptions, build_branches, cue_text
from cope_train.objectives.chat import ChatPieces, TemplateError

OPEN, KITCHEN, FOCUS, PICK = "open door", "go to kitchen", "focus on thermometer", "pick up metal pot"


def turns_of(branches):
    return {branch.turn: [slot.turn for slot in branch.slots] for branch in branches}


def text_of(tokenizer, branch):
    return tokenizer.decode(branch.ids)


@pytest.fixture
def record(tokenizer, chat):
    script = [Say(OPEN, thought="I should look"), Say(KITCHEN), Say(FOCUS, thought="The door is open"), Say(PICK)]
    return episode(tokenizer, chat, script)


def test_policy_layout_is_the_policys_own_format_without_thought(tokenizer, chat, record):
    first = build_branches(record, chat, BranchOptions())[0]
    next_turn = "<|im_end|>\n<|im_start|>user\nNext.<|im_end|>\n<|im_start|>assistant\n"
    asked = "Give your next 3 actions, the one you take now first: usual format, no reasoning, one per reply."
    written = next_turn.join(f"Action: {action}" for action in (OPEN, KITCHEN, FOCUS))
    reply = f"<|im_end|>\n<|im_start|>assistant\n{written}<|im_end|>"
    assert text_of(tokenizer, first) == f"<|im_start|>user\n{asked}{reply}"
    learnt = [token for token, m in zip(first.ids, first.loss_mask, strict=True) if m]
    assert tokenizer.decode(learnt) == "".join(f"Action: {a}<|im_end|>" for a in (OPEN, KITCHEN, FOCUS))


def test_h_t_ends_with_the_observation(tokenizer, chat, record):
    for branch, turn in zip(build_branches(record, chat, BranchOptions()), record.turns, strict=True):
        assert record.ids[branch.prefix_end : turn.start] == chat.header
        assert tokenizer.decode(record.ids[: branch.prefix_end]).endswith("<|im_end|>\n")


def test_target_ids_are_spliced_not_encoded_again(tokenizer, chat, record):
    turn = record.turns[0]
    sampled = record.ids[turn.action_start : turn.action_end]
    assert sampled != tokenizer.encode(OPEN, add_special_tokens=False), "the bare line has another first id"
    for layout in ("policy", "turns", "list"):
        branch = build_branches(record, chat, BranchOptions(layout=layout))[0]
        slot = branch.slots[0]
        assert branch.ids[slot.action_start : slot.action_end] == sampled


def test_ids_that_no_encoder_would_give_survive(tokenizer, chat):
    record = episode(tokenizer, chat, [Say(OPEN), Say(KITCHEN)])
    turn = record.turns[1]
    pieces = [tokenizer.encode(c, add_special_tokens=False)[0] for c in " go to kitchen"]
    ids = record.ids[: turn.action_start] + pieces + record.ids[turn.action_end :]
    shift = len(pieces) - (turn.action_end - turn.action_start)
    moved = replace(turn, action_end=turn.action_end + shift, block_end=turn.block_end + shift)
    record = replace(record, ids=ids, turns=(record.turns[0], moved))
    branch = build_branches(record, chat, BranchOptions())[0]
    slot = branch.slots[1]
    assert branch.ids[slot.action_start : slot.action_end] == pieces
    assert pieces != tokenizer.encode(" go to kitchen", add_special_tokens=False)


def test_k_is_what_was_realised(chat, record, tokenizer):
    branches = build_branches(record, chat, BranchOptions(horizon=3))
    assert [len(b.slots) for b in branches] == [3, 3, 2, 1]
    assert "next 2 actions" in text_of(tokenizer, branches[2])
    assert "next action (the one you take now):" in text_of(tokenizer, branches[3])


def test_skip_invalid_looks_further_and_keeps_true_turns(tokenizer, chat):
    record = episode(tokenizer, chat, [Say(OPEN), Say(KITCHEN, valid=False), Say(FOCUS), Say(PICK)])
    skipping = build_branches(record, chat, BranchOptions(horizon=2))
    assert turns_of(skipping) == {0: [0, 2], 1: [2, 3], 2: [2, 3], 3: [3]}
    assert "now" in text_of(tokenizer, skipping[0])
    assert "now" not in text_of(tokenizer, skipping[1]), "slot 0 is a later action, so nothing starts now"
    assert turns_of(build_branches(record, chat, BranchOptions(horizon=2, skip_invalid=False))) == {
        0: [0, 1], 1: [1, 2], 2: [2, 3], 3: [3]
    }  # fmt: skip


def test_a_turn_without_action_is_no_target(tokenizer, chat):
    record = episode(tokenizer, chat, [Say(OPEN), Say("", thought="hm"), Say(FOCUS)])
    assert turns_of(build_branches(record, chat, BranchOptions(skip_invalid=False, horizon=2))) == {
        0: [0],
        1: [2],
        2: [2],
    }


def test_thought_is_context_of_slot_0_only(tokenizer, chat, record):
    for branch, plain in zip(
        build_branches(record, chat, BranchOptions(thought=True)),
        build_branches(record, chat, BranchOptions()),
        strict=True,
    ):
        text = text_of(tokenizer, branch)
        own = record.turns[branch.turn].index in (0, 2)
        assert text.count("Thought:") == int(own)
        assert branch.targets == plain.targets, "a thought is never learnt here"


def test_list_layout_fences_actions_of_several_lines(tokenizer, chat):
    record = episode(tokenizer, chat, [Say("for x in range(10):\n  print(x)"), Say(OPEN)])
    text = text_of(tokenizer, build_branches(record, chat, BranchOptions(layout="list"))[0])
    assert text.endswith(f"assistant\n```\n for x in range(10):\n  print(x)\n```\n {OPEN}<|im_end|>")


def test_calls_only_and_turns_of_several_calls(tokenizer, chat):
    record = episode(
        tokenizer, chat,
        [Say(OPEN, call=True), Say("Hello", call=False), Say(KITCHEN, call=True, calls=2), Say(FOCUS, call=True)],
    )  # fmt: skip
    assert turns_of(build_branches(record, chat, BranchOptions(targets="calls"))) == {0: [0, 3], 3: [3]}
    assert turns_of(build_branches(record, chat, BranchOptions())) == {0: [0, 1, 3], 1: [1, 3], 3: [3]}


def test_max_samples_keeps_the_last(chat, record):
    assert list(turns_of(build_branches(record, chat, BranchOptions(max_samples_per_trajectory=2)))) == [2, 3]


def test_failed_rows_have_no_branches(tokenizer, chat):
    assert build_branches(episode(tokenizer, chat, [Say(OPEN)], failed=True), chat, BranchOptions()) == []


def test_length_norm_gives_every_action_the_same_weight(chat, record):
    branch = build_branches(record, chat, BranchOptions(length_norm=True))[0]
    shares = [sum(branch.weights[slot.start : slot.end]) for slot in branch.slots]
    assert shares == pytest.approx([branch.targets / 3] * 3)


def test_template_that_refuses_user_after_user_gets_the_cue_inside_the_observation():
    tokenizer = make_tokenizer(ALTERNATING)
    chat = ChatPieces.probe(tokenizer)
    record = episode(tokenizer, chat, [Say(OPEN), Say(KITCHEN)])
    branch = build_branches(record, chat, BranchOptions())[1]
    whole = tokenizer.decode(record.ids[: branch.prefix_end] + branch.ids)
    assert whole.endswith(
        "user\nYou see a red apple.\n\nGive your next action (the one you take now): usual format, no reasoning."
        f"<|im_end|>\n<|im_start|>assistant\nAction: {KITCHEN}<|im_end|>"
    )


def test_the_branch_reads_like_the_template_renders_it(tokenizer, chat, record):
    """Ids of h_t + cue equal those of the rendered conversation: the synthetic turn is one that chat would produce."""
    branch = build_branches(record, chat, BranchOptions())[0]
    cue = branch.ids[: branch.slots[0].start]
    asked = cue_text(3, now=True, layout="policy", calls=False)
    messages = [{"role": "user", "content": text} for text in ("Open the green door.", asked)]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert record.ids[: branch.prefix_end] + cue == tokenizer.encode(text, add_special_tokens=False)


def test_bad_options_and_templates_are_named():
    with pytest.raises(ValueError, match="layout must be one of policy, turns, list"):
        BranchOptions(layout="tree")
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        BranchOptions(horizon=0)
    with pytest.raises(TemplateError, match="has no chat template"):
        ChatPieces.probe(make_tokenizer(""))
    with pytest.raises(TemplateError, match="drops or rewrites"):
        ChatPieces.probe(make_tokenizer(CHATML.replace("{{ message['content'] }}", "{{ message['content'][:2] }}")))
