"""Observation suffixes, end of turn and action tokens, over the chat templates of the usual model families."""

from __future__ import annotations

from functools import cache
from os.path import commonprefix
from pathlib import Path

import pytest
import trl
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import CHATML, make_tokenizer

from cope_gym.errors import InputError
from cope_train.rollout.template import ChatTemplate

pytestmark = pytest.mark.train

FOLDER = Path(trl.__file__).parent / "chat_templates"
LLAMA3 = ["<pad>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
GEMMA = ["<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ ' [INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
)

# name: (template, special tokens, end of turn, whether appending equals rendering, template arguments)
FAMILIES = {
    "chatml": (CHATML, None, "<|im_end|>", True, {}),
    "qwen2_5": ("qwen2_5", None, "<|im_end|>", True, {}),
    "qwen3_thinking": ("qwen3", None, "<|im_end|>", True, {}),
    "qwen3_no_thinking": ("qwen3", None, "<|im_end|>", False, {"enable_thinking": False}),
    "llama3": ("llama3", LLAMA3, "<|eot_id|>", True, {}),
    "gemma": ("gemma", GEMMA, "<end_of_turn>", True, {}),
    "mistral": (MISTRAL, ["<pad>", "<s>", "</s>"], "</s>", True, {}),
}


def build(name: str) -> ChatTemplate:
    source, special, eos, _, kwargs = FAMILIES[name]
    text = source if "{" in source else (FOLDER / f"{source}.jinja").read_text()
    tokenizer = make_tokenizer(text, special, eos)
    if special:
        tokenizer.bos_token = special[1]
    return ChatTemplate(tokenizer, kwargs=kwargs)


build_once = cache(build)


@pytest.mark.parametrize("name", FAMILIES)
def test_appending_equals_rendering_the_whole_conversation(name: str) -> None:
    template = build(name)
    assert template.tokenizer.decode([template.end_of_turn]) == FAMILIES[name][2]
    assert template.exact == FAMILIES[name][3]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_observation_is_the_users_message_and_the_generation_header(name: str) -> None:
    template = build(name)
    message = template.observation("The door is open.")
    text = template.tokenizer.decode(message.ids)
    assert text.count("The door is open.") == 1
    start, end = message.content
    assert template.tokenizer.decode(message.ids[start:end]).strip() == "The door is open."
    if name != "mistral":  # its user message has no header after it
        header = template.tokenizer.decode(message.ids[-message.header :])
        assert ("assistant" in header or "model" in header) and "door" not in header
    prompt = template.prompt([{"role": "system", "content": "Rules."}, {"role": "user", "content": "Hello"}])
    shown = template.tokenizer.decode(prompt.ids)
    assert shown.count("Rules.") == 1 and shown.count("Hello") == 1


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_an_observation_in_its_frame_equals_the_rendered_one(name: str, text: str) -> None:
    template = build_once(name)
    assert template.observation(text) == template._rendered(text)


def test_every_family_has_a_frame_and_a_template_that_looks_at_the_text_has_none() -> None:
    assert all(build_once(name)._frame is not None for name in FAMILIES)
    odd = CHATML.replace("m['content']", "m['content'].replace('.', '!')")
    template = ChatTemplate(make_tokenizer(odd))
    assert template._frame is None
    assert template.tokenizer.decode(template.observation("Open.").ids).count("Open!") == 1


def test_thinking_stays_where_it_was_sampled() -> None:
    template = build("qwen3_no_thinking")
    header = template.observation("x").ids[-template.observation("x").header :]
    assert "<think>" in template.tokenizer.decode(header)


def test_a_template_without_an_end_of_turn_is_refused() -> None:
    plain = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    with pytest.raises(InputError, match="end an assistant turn"):
        ChatTemplate(make_tokenizer(plain))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        ChatTemplate(tokenizer)


TEMPLATE = build("chatml")


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40), data=st.data())
def test_token_ranges_cover_exactly_the_characters(text: str, data: st.DataObject) -> None:
    ids = TEMPLATE.tokenizer.encode(text, add_special_tokens=False)
    shown = TEMPLATE.text(ids)
    start = data.draw(st.integers(0, len(shown)))
    end = data.draw(st.integers(start, len(shown)))
    tokens = TEMPLATE.token_range(ids, start, end)
    if start == end:
        assert tokens is None
        return
    assert tokens is not None
    first, last = tokens
    assert first < last
    # The tokens before settle nothing of the range, those up to its end settle all of it; neither could be fewer.
    assert TEMPLATE.text(ids[:last])[:end] == shown[:end]
    assert len(commonprefix([TEMPLATE.text(ids[: last - 1]), shown])) < end
    assert len(commonprefix([TEMPLATE.text(ids[:first]), shown])) <= start
    settled = next(j for j in range(len(ids) + 1) if len(commonprefix([TEMPLATE.text(ids[: j + 1]), shown])) > start)
    assert first <= settled


def test_the_tokens_of_an_action_are_the_literal_substring() -> None:
    for text in ["Thought: I should open the door.\nAction: open door", "Action: größe 🚪 open", "🚪Action: 🚪"]:
        ids = TEMPLATE.tokenizer.encode(text)
        start = text.index("Action: ") + len("Action: ")
        tokens = TEMPLATE.token_range(ids, start, len(text))
        assert tokens is not None
        assert TEMPLATE.text(ids[tokens[0] : tokens[1]]).strip() == text[start:]
