"""One recorded task being played: shows each page, takes an action, compares it with the recorded one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from env_servers.adapter import AdapterError, Episode, StepResult
from env_servers.mind2web import actions, metrics, snapshot
from env_servers.mind2web.page import Element
from env_servers.mind2web.store import Recorded, Store, TaskRow


def page_and_record(
    store: Store, row: TaskRow, number: int, options: Mapping[str, Any]
) -> tuple[snapshot.Snapshot, Recorded]:
    """Returns a page as an agent sees it under these options, and what was done on it."""
    recorded = store.recorded(row.id, number)
    page: Any = store.page(row.id, number)
    if options["gold_included"] and recorded.revealing is not None:
        page = recorded.revealing
    return snapshot.take(page, row.text, options["max_chars"]), recorded


class Mind2WebEpisode(Episode):
    """A playback.

    Args:
        store: Where the pages are.
        row: The task.
        options: A full set of options.
    """

    def __init__(self, store: Store, row: TaskRow, options: Mapping[str, Any]) -> None:
        self._store = store
        self._row = row
        self._options = options
        self._numbers = store.numbers(row.id)
        self._verdicts: list[metrics.Verdict] = []
        self._done: list[str] = []
        self._recorded: list[str] = []
        self._ended = False
        self._open()
        self.first = self._result(f"{self._task()}\n\n{self._observe()}", 0.0, True, {})

    def step(self, action: Any) -> StepResult:
        """See the base class. In the mode `strict` the first wrong action ends the task."""
        if not isinstance(action, (str, dict)):
            raise AdapterError("bad_action", f"An action is a text such as 'CLICK [e3]', not {type(action).__name__}.")
        if self._ended:
            raise AdapterError("episode_over", "The task has ended; start a new episode.")
        problem, read, element = self._read(action)
        verdict = metrics.judge(read, element.node if element else None, self._gold)
        self._verdicts.append(verdict)
        self._done.append(_words(read, element) if read and element else "(an action that could not be carried out)")
        self._recorded.append(self._gold.text)
        played = len(self._verdicts)
        self._ended = played == len(self._numbers) or (self._options["mode"] == "strict" and not verdict.correct)
        told: dict[str, Any] = {
            "element_correct": verdict.element,
            "op_correct": verdict.op,
            "value_correct": verdict.value,
            "op_f1": verdict.f1,
            "step_success": verdict.step_success,
            "step_reachable": self._reachable,
        }
        if problem:
            told["invalid_action"] = problem
        if not self._ended:
            self._open()
            text = self._observe()
        else:
            text = "The task has ended." if verdict.correct else "That was not what was done. The task has ended."
        return self._result(f"{problem}\n\n{text}" if problem else text, float(verdict.correct), not problem, told)

    def _open(self) -> None:
        number = self._numbers[len(self._verdicts)]
        self._page, recorded = page_and_record(self._store, self._row, number, self._options)
        self._gold = recorded.gold
        self._reachable = any(one.node in recorded.gold.nodes for one in self._page.shown.values() if one.node)

    def _read(self, action: Any) -> tuple[str, actions.Action | None, Element | None]:
        """Returns what is wrong with an action, the action, and the element that it names."""
        try:
            read = actions.parse(action)
        except actions.ActionError as error:
            return str(error), None, None
        element = self._page.shown.get(read.ref)
        return ("" if element else f"There is no {read.ref} on this page."), read, element

    def _task(self) -> str:
        row = self._row
        lines = [f"Task: {row.text}", f"Website: {row.website} ({row.domain}, {row.subdomain})"]
        if self._options["show_total_steps"]:
            lines.append(f"Steps: {len(self._numbers)}")
        return "\n".join(lines)

    def _observe(self) -> str:
        history = self._recorded if self._options["gold_history"] else self._done
        before = [f"{number}. {what}" for number, what in enumerate(history, 1)]
        return "\n".join([*(["Actions so far:", *before, ""] if before else []), "Page:", self._page.text])

    def _result(self, text: str, reward: float, valid: bool, told: dict[str, Any]) -> StepResult:
        right = sum(verdict.correct for verdict in self._verdicts)
        info: dict[str, Any] = {
            "raw_score": right,
            "score": right / len(self._numbers),
            "success": right == len(self._numbers),
            "action_valid": valid,
            "step_metrics": metrics.summary(self._verdicts, len(self._numbers)),
            **told,
        }
        return StepResult(text, reward, self._ended, False, info)


def _words(action: actions.Action, element: Element) -> str:
    value = f' "{action.value}"' if action.op != "CLICK" else ""
    return f"{action.op}{value} {snapshot.label(element)}"
