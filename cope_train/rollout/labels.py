"""From a sampled turn to its label: which of its tokens are the action that ran, and which are its written form.

The action is found by `cope_gym.actions`; the *block* is the action with the markers of its format, e.g. `Action: open
door`, which is what a forecast of a policy turn has to look like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cope_gym.actions import ParsedAction, parse
from cope_train.rollout.buffer import EpisodeBuffer
from cope_train.rollout.template import ChatTemplate

# What may stand directly before and after the action, by format. Formats that are not named have no markers.
_BEFORE = {
    "react": re.compile(r"[*_`#>]*[ \t]*\baction[ \t]*[*_`]*:[*_`]*\s*\Z", re.IGNORECASE),
    "tag": re.compile(r"<action>\s*\Z", re.IGNORECASE),
    "tool_call": re.compile(r"<tool_call>\s*\Z"),
    "code": re.compile(r"`{3,}[^`\n]*\n\s*\Z"),
}
_AFTER = {
    "tag": re.compile(r"\s*</action>", re.IGNORECASE),
    "tool_call": re.compile(r"\s*</tool_call>"),
    "code": re.compile(r"\s*`{3,}"),
}


def block_range(text: str, action: ParsedAction, format: str) -> tuple[int, int]:
    """Returns the character range of an action together with the markers of its format."""
    start, end = action.start, action.end
    if format in _BEFORE and (before := _BEFORE[format].search(text[:start])):
        start = before.start()
    if format in _AFTER and (after := _AFTER[format].match(text, end)):
        end = after.end()
    return start, end


def label_turn(
    buffer: EpisodeBuffer, ids: Sequence[int], template: ChatTemplate, format: str
) -> tuple[str, ParsedAction]:
    """Finds the action of the last turn and records its tokens in the buffer.

    Args:
        buffer: Its last turn is made of `ids`.
        ids: The sampled ids.
        template: Decodes them.
        format: A name of `cope_gym.actions.FORMATS`.

    Returns:
        The turn's text and the parsed action.
    """
    text = template.text(ids)
    action = parse(text, format)
    tokens = template.token_range(ids, action.start, action.end)
    if action.error is None and tokens is not None:
        start, end = block_range(text, action, format)
        block = template.token_range(ids, start, end) or tokens
        buffer.label(tokens, block, action.action.count("\n") + 1)
    return text, action
