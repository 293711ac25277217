"""Chat templates as token suffixes: what stands between two sampled turns, found by difference, never guessed.

A rollout renders its first prompt once and from then on only appends. `ChatTemplate` finds, for the model at hand,
which token ends a turn, which tokens a user message adds, and where the generation header begins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonprefix
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from cope_gym.errors import InputError

Message = dict[str, str]


@dataclass(frozen=True)
class Suffix:
    """Tokens to append.

    Attributes:
        ids: The tokens, generation header included.
        header: How many of the last ones are the generation header.
        content: Range of the message's own text, without roles and template.
    """

    ids: list[int]
    header: int
    content: tuple[int, int] = (0, 0)


# Two dummy replies that share neither their first nor their last token: what they share is the template's.
_REPLIES = ("alpha", "echo")
# Beginnings, ends and insides that could run together with what stands around them.
_PROBES = (
    "You see a door.",
    "1",
    "\u00fcn\u00ef \U0001f6aa \u4e2d",
    "a\n\n  b\tc",
    '"quoted"',
    ".",
    "<tool_response>x</tool_response>",
)


class ChatTemplate:
    """The chat template of one model.

    Args:
        tokenizer: Tokenizer with a chat template.
        stop_ids: Further ids that end a turn, e.g. those of the model's generation config.
        kwargs: Arguments of the template, e.g. `{"enable_thinking": False}`.

    Attributes:
        end_of_turn: Token that closes an assistant turn.
        stop_ids: All ids at which sampling of a turn stops.
        system_role: Whether the template knows system messages; where not, they are put before the first user message.
        exact: Whether appending gives the same tokens as rendering the whole conversation. Templates that drop old
            reasoning do not have this; episodes keep what was sampled.

    Raises:
        InputError: There is no template, or it has no token that ends a turn.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        if not tokenizer.chat_template:
            raise InputError(
                f"{tokenizer.name_or_path or 'the tokenizer'} has no chat template: take an instruct model, or set "
                "`tokenizer.chat_template`",
                type="bad_option",
            )
        self.tokenizer = tokenizer
        self.kwargs = dict(kwargs or {})
        self._decode = _decoder(tokenizer)
        self._last_known: _Known | None = None
        self.system_role = self._accepts([{"role": "system", "content": "s"}, *_user("u")])
        self.end_of_turn = self._find_end_of_turn()
        self.stop_ids = tuple(dict.fromkeys([self.end_of_turn, *stop_ids]))
        self._lead = self._find_lead()
        self._margins = self._find_margins()
        self._frame = self._find_frame()
        self.observation = lru_cache(maxsize=4096)(self._observation)
        self.exact = self._is_exact()

    def prompt(self, messages: list[Message]) -> Suffix:
        """Renders the first messages with the generation header."""
        messages = self._merge_system(messages)
        ids = self._render(messages, header=True)
        return Suffix(ids, len(ids) - _common_prefix(ids, self._render(messages, header=False)))

    def _observation(self, text: str) -> Suffix:
        """Returns the tokens that follow an ended assistant turn when the user says `text`."""
        if self._frame is not None and text and text == text.strip():
            return self._framed(text, *self._frame)
        return self._rendered(text)

    def _rendered(self, text: str) -> Suffix:
        """Finds them by difference: four renderings, a few milliseconds."""
        ids = self._after_reply(text, header=True)
        header = len(ids) - _common_prefix(ids, self._after_reply(text, header=False))
        before, after = self._margins
        return Suffix(ids, header, (min(before, len(ids) - after), len(ids) - after))

    def _framed(self, text: str, left: str, right: str, header: int) -> Suffix:
        """Encodes the text between what the template always puts around it."""
        ids = self.tokenizer.encode(left + text + right, add_special_tokens=False)
        before, after = self._margins
        return Suffix(ids, header, (min(before, len(ids) - after), len(ids) - after))

    def _find_frame(self) -> tuple[str, str, int] | None:
        """What stands around a user message after a reply, and the header's length; `None` where it is not constant.

        A special token ends the reply, and no token reaches over it: what follows can be encoded by itself. That is
        not taken for granted but compared with the renderings, on texts that templates and tokenizers treat specially.
        """
        mark = "\u2021mark\u2021"
        whole = self._text([*_user("u"), {"role": "assistant", "content": _REPLIES[0]}, *_user(mark)], header=True)
        end = self.tokenizer.convert_ids_to_tokens(self.end_of_turn)
        tail = whole.rpartition(_REPLIES[0])[2].partition(end)[2]
        left, found, right = tail.partition(mark)
        if not found:
            return None
        expected = [(text, self._rendered(text)) for text in _PROBES]
        frame = (left, right, expected[0][1].header)
        return frame if all(self._framed(text, *frame) == suffix for text, suffix in expected) else None

    def reply(self, text: str) -> list[int]:
        """Returns the tokens of an assistant turn, its end included, as a model would write them."""
        return [*self.tokenizer.encode(self._lead + text, add_special_tokens=False), self.end_of_turn]

    def text(self, ids: Sequence[int]) -> str:
        """Decodes a sampled turn without its special tokens."""
        return self._decode(ids)

    def token_range(self, ids: Sequence[int], start: int, end: int) -> tuple[int, int] | None:
        """Returns the range of `ids` that covers the characters [start, end) of `text(ids)`; `None` if empty."""
        if start >= end:
            return None
        known = self._last_known
        if known is None or known.ids is not ids:  # a turn is asked for its action and for its block
            known = self._last_known = _Known(self, ids)
        # Tokens that hold a part of a character know no more than the token before them: they belong to it.
        last = bisect_left(known, end)
        first = bisect_left(known, known[bisect_right(known, start) - 1])
        return first, last

    def _after_reply(self, text: str, header: bool) -> list[int]:
        first, second = (
            self._render([*_user("u"), {"role": "assistant", "content": reply}, *_user(text)], header=header)
            for reply in _REPLIES
        )
        return first[len(first) - _common_suffix(first, second) + 1 :]

    def _find_lead(self) -> str:
        """White space that the template puts before a reply; a model trained on it samples it itself."""
        text = self._text([*_user("u"), {"role": "assistant", "content": _REPLIES[0]}], header=False)
        before = text[: text.rindex(_REPLIES[0])]
        lead = before.removeprefix(self._text(_user("u"), header=True))
        return lead if lead.isspace() else ""

    def _find_margins(self) -> tuple[int, int]:
        """Numbers of template tokens before and after a message's own text."""
        first, second = (self._after_reply(text, header=True) for text in _REPLIES)
        return _common_prefix(first, second), _common_suffix(first, second)

    def _find_end_of_turn(self) -> int:
        first, second = (
            self._render([*_user("u"), {"role": "assistant", "content": reply}], header=False) for reply in _REPLIES
        )
        tail = first[len(first) - _common_suffix(first, second) :]
        if not tail or tail[0] not in _special_ids(self.tokenizer):
            raise InputError(
                f"the chat template of {self.tokenizer.name_or_path or 'this tokenizer'} does not end an assistant "
                "turn with a special token, so a model cannot say when its turn is over: choose another template",
                type="bad_option",
            )
        return tail[0]

    def _accepts(self, messages: list[Message]) -> bool:
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, **self.kwargs)
        except TemplateError:
            return False
        return all(message["content"] in text for message in messages)

    def _is_exact(self) -> bool:
        messages = [{"role": "system", "content": "s"}, *_user("u")]
        appended = self.prompt(messages).ids
        for reply, text in zip(_REPLIES, ("first", "second"), strict=True):
            appended = [*appended, *self.reply(reply), *self.observation(text).ids]
            messages += [{"role": "assistant", "content": reply}, *_user(text)]
        return appended == self._render(self._merge_system(messages), header=True)

    def _merge_system(self, messages: list[Message]) -> list[Message]:
        if self.system_role or not messages or messages[0]["role"] != "system":
            return messages
        system, user, *rest = messages
        return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]

    def _text(self, messages: list[Message], header: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=header, tokenize=False, **self.kwargs
        )

    def _render(self, messages: list[Message], header: bool) -> list[int]:
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=header, tokenize=True, return_dict=True, **self.kwargs
        )["input_ids"]


class _Known(Sequence[int]):
    """How many characters the first j tokens settle, for j = 0, 1, …; decoded on demand, few are needed."""

    def __init__(self, template: ChatTemplate, ids: Sequence[int]) -> None:
        self.template = template
        self.ids = ids
        self.text = template.text(ids)
        self.found: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.ids) + 1

    def __getitem__(self, index: Any) -> Any:
        if index not in self.found:
            head = self.template.text(self.ids[:index])
            same = self.text.startswith(head)
            self.found[index] = len(head) if same else len(commonprefix([head, self.text]))
        return self.found[index]


def _decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[int]], str]:
    """Returns what decodes without special tokens, and without the converting and checking of a general `decode`."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return lambda ids: core.decode(ids, skip_special_tokens=True)


def _user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids)


def _common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _common_suffix(a: list[int], b: list[int]) -> int:
    return _common_prefix(a[::-1], b[::-1])
