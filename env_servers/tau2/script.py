"""The scripted customer: deterministic and offline, for tests, demonstrations and quick training runs.

It follows a few rules over the agent's words. It does not reproduce the benchmark's difficulty: results with it are
labelled `user=scripted` and are no τ² scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

MAX_TURNS = 40

_FAREWELL = re.compile(r"\b(goodbye|good bye|all done|have a (nice|great|good) day)\b")
_TRANSFER = re.compile(r"\b(transferred|transferring|transfer) (you|the (user|customer|call))\b|being transferred")
_CONFIRM = re.compile(
    r"yes/no|\(yes|\bconfirm|\bproceed\b|would you like me to|shall i|do you want me to|is that correct"
)
_IDENTITY = re.compile(r"\b(user id|name|zip|e-?mail|phone|number|reservation|order|confirmation|verify|details?)\b")
_UNKNOWN_WORDS = re.compile(r"[a-z]{4,}")

# Phrases in an agent's instructions → what the customer does with the phone.
_PHONE: tuple[tuple[str, str], ...] = (
    (r"speed test", "run_speed_test"),
    (r"airplane mode", "toggle_airplane_mode"),
    (r"re-?seat|remove .*sim|sim card out", "reseat_sim_card"),
    (r"sim (card )?status|check .*sim", "check_sim_status"),
    (r"reset .*apn", "reset_apn_settings"),
    (r"apn", "check_apn_settings"),
    (r"re(boot|start)", "reboot_device"),
    (r"data saver", "toggle_data_saver_mode"),
    (r"wi-?fi calling", "toggle_wifi_calling"),
    (r"(disconnect|turn off|disable) .*vpn", "disconnect_vpn"),
    (r"vpn", "check_vpn_status"),
    (r"roaming", "toggle_roaming"),
    (r"(turn|switch|toggle) .*mobile data|mobile data (on|off)", "toggle_data"),
    (r"network mode", "check_network_mode_preference"),
    (r"network status|signal", "check_network_status"),
    (r"status bar", "check_status_bar"),
    (r"mms|picture message", "can_send_mms"),
    (r"payment request", "check_payment_request"),
    (r"(pay|make) .*(bill|payment)", "make_payment"),
)


class UserFailed(Exception):
    """The customer gave no usable answer (a customer played by a model). Nothing of the conversation has changed."""


@dataclass(frozen=True)
class Reply:
    """What the customer does: says something, or uses a tool.

    Attributes:
        text: Words, holding a stop signal at the end of the conversation; "" with a tool.
        tool: Name of the tool.
        arguments: Its arguments.
    """

    text: str = ""
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Script:
    """One customer.

    Args:
        reason: Why they call.
        known: What they know of themselves.
        unknown: What they do not know.
        tools: Names of the tools that they have.
    """

    reason: str
    known: str = ""
    unknown: str = ""
    tools: Collection[str] = ()
    turns: int = 0

    def opening(self) -> Reply:
        """Returns the first words."""
        return Reply(" ".join(part for part in (self.reason, self.known) if part).strip() or "I need help.")

    def report(self, results: list[str]) -> Reply:
        """Returns what the customer tells after using a tool."""
        return Reply("I did that. It says: " + " ".join(results))

    def answer(self, said: str) -> Reply:
        """Returns the answer to the agent's words; the first rule that fits counts."""
        self.turns += 1
        text = said.lower()
        if self.turns > MAX_TURNS or _FAREWELL.search(text):
            return Reply("Thank you. ###STOP###")
        named = self._named_tool(said)
        if named is not None:
            return named
        if _TRANSFER.search(text):
            return Reply("###TRANSFER###")
        for pattern, tool in _PHONE:
            if tool in self.tools and re.search(pattern, text):
                return Reply(tool=tool)
        if self._asks_what_is_unknown(text):
            return Reply(f"I don't know. {self.unknown}".strip())
        if _CONFIRM.search(text):
            return Reply("Yes.")
        if "?" in text or _IDENTITY.search(text):
            return Reply(self.known or self.reason)
        return Reply("Thank you. ###STOP###")

    def _named_tool(self, said: str) -> Reply | None:
        """Finds a tool called by its name, with its arguments in JSON behind it."""
        for match in re.finditer(r"\b[a-z]+(?:_[a-z]+)+\b", said):
            if match[0] in self.tools:
                return Reply(tool=match[0], arguments=_arguments(said[match.end() :]))
        return None

    def _asks_what_is_unknown(self, text: str) -> bool:
        common = {"know", "remember", "your", "have", "with", "what", "does", "the", "that", "this", "number"}
        words = set(_UNKNOWN_WORDS.findall(self.unknown.lower())) - common
        return "?" in text and bool(words & set(_UNKNOWN_WORDS.findall(text)))


def _arguments(behind: str) -> dict[str, Any]:
    start = behind.find("{")
    if start < 0:
        return {}
    try:
        value, _ = json.JSONDecoder().raw_decode(behind, start)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def request(tool: str, arguments: Mapping[str, Any]) -> str:
    """Words a request to the customer so that `Script` uses exactly this tool."""
    return f"Please use {tool} with {json.dumps(dict(arguments))} on your phone and tell me what it says."
