"""Signs that a policy leaves its action format. Cheap, per turn, and visible long before success falls.

Public experience with auxiliary losses on actions is that any target unlike a policy turn bleeds into the policy: bare
commands, several actions at once, tags written as prose. These flags find such turns in any recorded episode.
"""

from __future__ import annotations

import re

from cope_gym.trajectory import Trajectory, Turn

FLAGS = {
    "no_action": "no action was found in the turn",
    "malformed": "an action marker or tag was written, but not so that it parses",
    "several": "more than one action was written",
    "cut": "the token limit cut the turn",
    "loop": "third or later repetition of an action that changes nothing",
}
"""Name of each flag and what it means, in the order of the viewer's bit mask."""

_MARKER = re.compile(r"^[ \t*_`#>]*action[ \t*_`]*:", re.IGNORECASE | re.MULTILINE)
_TAG = re.compile(r"<(action|tool_call)>", re.IGNORECASE)


def turn_flags(episode: Trajectory) -> list[list[str]]:
    """Returns the flags of every turn, in order."""
    return [_flags(episode, turn) for turn in episode.turns]


def _flags(episode: Trajectory, turn: Turn) -> list[str]:
    text = episode.messages[turn.message]["content"] if turn.message < len(episode.messages) else ""
    markers = max(len(_MARKER.findall(text)), len(_TAG.findall(text)))
    found = {
        "no_action": not turn.action,
        "malformed": not turn.action and markers > 0,
        "several": markers > 1,
        "cut": turn.truncated,
        "loop": _repeats(episode, turn),
    }
    return [name for name, holds in found.items() if holds]


def _repeats(episode: Trajectory, turn: Turn) -> bool:
    """Whether this turn and the two before it hold the same action and saw the same observation."""
    last = episode.turns[max(0, turn.index - 2) : turn.index + 1]
    if len(last) < 3 or not turn.action or len({t.action for t in last}) > 1:
        return False
    after = {episode.messages[t.message + 1]["content"] for t in last if t.message + 1 < len(episode.messages)}
    return len(after) == 1
