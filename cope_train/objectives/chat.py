"""The token pieces with which a branch goes on from h_t, cut out of the tokenizer's own chat template.

Only template text and cues are encoded here. What the policy wrote is never encoded again: it is spliced in
as sampled ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Message = dict[str, str]
# Words that no template contains; they mark where a message's content ends in a rendering.
_QUESTION, _REPLY, _OBSERVATION, _SECOND = "qzfirst", "qzreply", "qzobservation", "qzsecond"
_SEEN: list[Message] = [
    {"role": "user", "content": _QUESTION},
    {"role": "assistant", "content": _REPLY},
    {"role": "user", "content": _OBSERVATION},
]
_REPLIED: list[Message] = [*_SEEN, {"role": "assistant", "content": _SECOND}]


class TemplateError(ValueError):
    """The chat template cannot carry a synthetic user turn."""


@dataclass(frozen=True)
class ChatPieces:
    """Continuations of a conversation that ends with an observation.

    Attributes:
        header: Ids that open an assistant turn (the generation prompt).
        turn_end: Ids that close an assistant turn; the first one is the end-of-turn token.
        merge_cut: 0 where the template takes user after user. Otherwise the cue joins the observation message itself,
            and this many ids, those that close a user message, are cut from h_t first.
    """

    header: list[int]
    turn_end: list[int]
    merge_cut: int
    render: Callable[[list[Message], bool], str]
    encode: Callable[[str], list[int]]

    @classmethod
    def probe(cls, tokenizer: Any, template_kwargs: dict[str, Any] | None = None) -> ChatPieces:
        """Finds the pieces of a tokenizer's chat template.

        Args:
            tokenizer: A Transformers tokenizer with a chat template.
            template_kwargs: Further arguments of the template, e.g. `{"enable_thinking": False}`.

        Raises:
            TemplateError: There is no template, or it does not mark where a message ends.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError("the tokenizer has no chat template; set tokenizer.chat_template before training")

        def render(messages: list[Message], generation: bool) -> str:
            return tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation, **(template_kwargs or {})
            )

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        user_end = _tail(render(_SEEN, False), _OBSERVATION)
        header = _tail(render(_SEEN, True), _OBSERVATION).removeprefix(user_end)
        turn_end = _tail(render(_REPLIED, False), _SECOND)
        if not turn_end or not header:
            raise TemplateError("the chat template does not mark where an assistant turn begins and ends")
        merge_cut = 0 if _takes_user_after_user(render, user_end) else len(encode(user_end))
        return cls(encode(header), encode(turn_end), merge_cut, render, encode)

    def cue(self, text: str) -> list[int]:
        """Returns the ids that ask `text` after an observation and open the assistant's reply."""
        if self.merge_cut:
            merged = {"role": "user", "content": f"{_OBSERVATION}\n\n{text}"}
            return self.encode(_tail(self.render([*_SEEN[:-1], merged], True), _OBSERVATION))
        user_end = _tail(self.render(_SEEN, False), _OBSERVATION)
        asked = self.render([*_SEEN, {"role": "user", "content": text}], True)
        return self.encode(_tail(asked, _OBSERVATION).removeprefix(user_end))

    def between(self, text: str) -> list[int]:
        """Returns the ids that close an assistant turn, ask `text` and open the next; first the end-of-turn token."""
        return self.encode(_tail(self.render([*_REPLIED, {"role": "user", "content": text}], True), _SECOND))


def _tail(rendering: str, marker: str) -> str:
    """What a rendering holds after the content `marker`."""
    if marker not in rendering:
        raise TemplateError("the chat template drops or rewrites message contents; use one that keeps them")
    return rendering[rendering.rindex(marker) + len(marker) :]


def _takes_user_after_user(render: Callable[[list[Message], bool], str], user_end: str) -> bool:
    """Some templates raise for two user messages in a row, others melt them together."""
    try:
        asked = render([*_SEEN, {"role": "user", "content": _SECOND}], False)
    except Exception:  # Jinja's errors, or whatever the template's raise_exception is bound to
        return False
    return _tail(asked, _OBSERVATION).startswith(user_end) and _SECOND in asked and bool(user_end)
