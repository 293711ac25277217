"""WebShop as an environment: a native shop with the published search, pages, goals and reward."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence

import numpy
import rapidfuzz

from env_servers.adapter import Adapter, AdapterError, Episode, Facts, StepResult, Task
from env_servers.webshop import pages
from env_servers.webshop.catalogues import DEFAULT, open_catalogue
from env_servers.webshop.goals import Goal
from env_servers.webshop.reward import best_selection
from env_servers.webshop.session import Session
from env_servers.webshop.store import FORMAT, RESULTS, StoreError
from env_servers.webshop.tasks import Tasks

VERSION = "1"
_CHOICES: Dict[str, Sequence[Any]] = {
    "observation_mode": ("text", "text_rich", "url"),
    "reward_mode": ("score", "success"),
    "show_attributes": (False, True),
    "list_actions": (False, True),
    "previous_observations": range(11),
    "previous_actions": range(11),
}


class WebShopEpisode(Episode):
    """One customer's visit, with the published text around it.

    Args:
        session: The visit.
        options: A full set of options.
    """

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        self._session = session
        self._options = options
        self._pages: List[str] = []
        self._actions: List[str] = []
        self.first = self._result("")

    def step(self, action: Any) -> StepResult:
        """Executes `search[...]` or `click[...]`; anything else changes nothing, as published."""
        if not isinstance(action, str):
            raise AdapterError(
                "bad_action", "a WebShop action is a string such as search[red shoes] or click[buy now]"
            )
        problem = self._session.act(action)
        self._actions.append(action)
        return self._result(problem)

    def _result(self, problem: str) -> StepResult:
        session = self._session
        score = session.reward if session.done else 0.0
        success = score == 1.0
        info: Dict[str, Any] = {
            "raw_score": score,
            "score": score,
            "success": success,
            "action_valid": not problem,
            "page": session.place,
            "available_actions": {"has_search_bar": session.place == "index", "clickables": session.clickables()},
            "reachable": session.goal.reachable,
        }
        if problem:
            info["invalid_action"] = problem
        if session.done:
            info["reward_parts"] = session.parts
        earned = float(success) if self._options["reward_mode"] == "success" else score
        return StepResult(self._observe(), earned, terminated=session.done, truncated=False, info=info)

    def _observe(self) -> str:
        page = self._write()
        text = " [SEP] ".join([*self._history(), page])
        self._pages.append(page)
        if self._options["list_actions"] and not self._session.done:
            searchable = self._session.place == "index"
            text += "\nActions: " + ", ".join(
                ["search[words]"] if searchable else [f"click[{name}]" for name in self._session.clickables()]
            )
        return text

    def _write(self) -> str:
        session, mode = self._session, self._options["observation_mode"]
        if mode == "url":
            return session.url()
        if mode == "text_rich":
            return pages.rich(session.page(), session.url(), session.visited)
        return pages.plain(session.page())

    def _history(self) -> List[str]:
        """Returns earlier pages and actions in turn, oldest first."""
        seen, done = self._options["previous_observations"], self._options["previous_actions"]
        texts: List[str] = []
        for back in range(1, 1 + max(seen, done)):
            texts += self._actions[-back:][:1] if back <= min(done, len(self._actions)) else []
            texts += self._pages[-back:][:1] if back <= min(seen, len(self._pages)) else []
        return texts[::-1]


class WebShopAdapter(Adapter):
    """WebShop. One catalogue per process, shared by all its sessions.

    Settings: `catalogue` (a name; `synthetic-1000` by default) and `goals` (`human` or `synthetic`: whose goals make
    up the train, dev and test splits; by default as `tasks.Tasks` says).
    """

    facts: ClassVar[Facts] = Facts(
        name="webshop",
        sessions_per_worker=512,
        concurrency="interleaved",
        python_requires=">=3.11",
        max_steps=15,
        step_timeout=30.0,
        action_format="react",
        reward_scale="0 to 1, given once, on purchase: the published WebShop reward",
    )

    def __init__(self, settings: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(settings)
        unknown = set(self.settings) - {"catalogue", "goals"}
        if unknown:
            raise AdapterError("bad_option", f"webshop has no setting {min(unknown)!r}; there are: catalogue, goals")
        primary = self.settings.get("goals")
        if primary not in (None, "human", "synthetic"):
            raise AdapterError("bad_option", f"setting goals is human or synthetic, not {primary!r}")
        try:
            self._catalogue = open_catalogue(str(self.settings.get("catalogue", DEFAULT)))
        except StoreError as error:
            raise AdapterError("bad_option", str(error)) from error
        self._tasks = Tasks(self._catalogue, primary)

    def metadata(self) -> Dict[str, Any]:
        """Returns versions, the catalogue's digest and its facts."""
        manifest = self._catalogue.manifest
        shown = ("name", "products", "goals", "seed", "dropped", "source", "nouns")
        return {
            "adapter_version": VERSION,
            "versions": {"numpy": numpy.__version__, "rapidfuzz": rapidfuzz.__version__, "catalogue_format": FORMAT},
            "data_digest": manifest["digest"],
            "engine_flags": {"catalogue": {key: manifest[key] for key in shown if key in manifest}},
            "goals": self._tasks.primary,
        }

    def splits(self) -> Sequence[str]:
        """Returns `train`, `dev`, `test` (or `all`), then the other kind of goals."""
        return self._tasks.splits()

    def tasks(self, split: str) -> List[Task]:
        """Returns the goals of a split."""
        return self._tasks.of(split)

    def canonical_id(self, task_id: str) -> Optional[str]:
        """Returns the goal behind a number of the original, e.g. `4680` or `agentgym/4680`: its place in the order."""
        number = task_id.rpartition("agentgym/")[2]
        return self._tasks.numbered(int(number)) if number.isascii() and number.isdigit() else None

    def start(self, task_id: str, seed: Optional[int], options: Mapping[str, Any]) -> WebShopEpisode:
        """Starts a visit. The seed changes nothing: prices and price ceilings are part of the catalogue."""
        chosen = _options(options)
        position, goal = self._tasks.find(task_id)
        return WebShopEpisode(Session(self._catalogue, goal, str(position), chosen["show_attributes"]), chosen)

    def gold(self, task_id: str, options: Mapping[str, Any]) -> Optional[List[Any]]:
        """Returns the purchase of the goal's own product, `None` for a goal that no purchase of it can reach."""
        _options(options)
        _, goal = self._tasks.find(task_id)
        selection, reached = best_selection(goal, self._catalogue.product(goal.asin))
        path = self._way_to(goal) if reached else None
        if path is None:
            return None
        return [*path, *(f"click[{value}]" for value in selection.values()), "click[buy now]"]

    def close(self) -> None:
        """Closes the catalogue."""
        self._catalogue.close()

    def _way_to(self, goal: Goal) -> Optional[List[str]]:
        """Finds a search that shows the product early, and the clicks to it.

        What a customer could type comes first, so that the solution can be imitated; the product's name is known only
        to who wrote the goal.
        """
        product = self._catalogue.product(goal.asin)
        ways: List[List[str]] = []
        for text in (goal.text, product.name, f"{product.name} {product.description}"):
            query = re.sub(r"[\[\]\s]+", " ", text).strip().lower()
            hits = self._catalogue.search(query) if query else []
            if goal.asin in hits[:RESULTS]:
                turns = hits.index(goal.asin) // pages.RESULTS_PER_PAGE
                ways.append([f"search[{query}]", *["click[next >]"] * turns, f"click[{goal.asin.lower()}]"])
        return min(ways, key=len, default=None)


def _options(given: Mapping[str, Any]) -> Dict[str, Any]:
    """Checks options and fills in the defaults, the first of the choices."""
    for name, value in given.items():
        if name not in _CHOICES:
            raise AdapterError("bad_option", f"webshop has no option {name!r}; there are: {', '.join(_CHOICES)}")
        allowed = _CHOICES[name]
        if not any(value == choice and type(value) is type(choice) for choice in allowed):
            raise AdapterError("bad_option", f"option {name} is one of {', '.join(map(repr, allowed))}, not {value!r}")
    return {name: given.get(name, allowed[0]) for name, allowed in _CHOICES.items()}


ADAPTER = WebShopAdapter
