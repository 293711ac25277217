"""The tokens of one episode: appended, never re-tokenised, never rewritten.

All per-token lists have one length by construction. Positions are absolute: they count from the first prompt token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cope_train.objectives.records import ActionTurn
from cope_train.rollout.template import Suffix


@dataclass
class EpisodeBuffer:
    """Token record of one episode.

    Attributes:
        ids: Token ids, prompt first.
        mask: 1 where the model sampled the token, else 0.
        logprobs: The sampler's log-probability, 0.0 for tokens that were not sampled.
        turn_ids: Turn index of sampled tokens, -1 elsewhere.
        turns: The action turns.
        observations: Token ranges of observation content after the prompt.
        prompt_length: Number of prompt tokens.
    """

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    turns: list[ActionTurn] = field(default_factory=list)
    observations: list[tuple[int, int]] = field(default_factory=list)
    prompt_length: int = 0
    _prefix_end: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def completion_length(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.ids) - self.prompt_length

    def append_prompt(self, prompt: Suffix) -> None:
        """Starts the episode with the rendered first messages, generation header included."""
        if self.ids:
            raise ValueError("the prompt is the first thing in an episode")
        self._append(prompt.ids, 0, None, -1)
        self.prompt_length = len(prompt.ids)
        self._prefix_end = len(prompt.ids) - prompt.header

    def append_turn(self, ids: list[int], logprobs: list[float], closing: list[int]) -> ActionTurn:
        """Adds what the model sampled; the turn has no action until `label` names one.

        Args:
            ids: Sampled ids, the end-of-turn token included where the model wrote it.
            logprobs: One per sampled id.
            closing: Ids that close a turn which the token limit cut; they are not trained on.
        """
        if not ids or len(ids) != len(logprobs):
            raise ValueError(f"a turn has tokens and a log-probability for each, got {len(ids)} and {len(logprobs)}")
        start, end = len(self.ids), len(self.ids) + len(ids)
        turn = ActionTurn(len(self.turns), start, end, self._prefix_end, end, end, end, end, valid=False)
        self._append(ids, 1, logprobs, turn.index)
        self._append(closing, 0, None, -1)
        self.turns.append(turn)
        return turn

    def label(self, action: tuple[int, int], block: tuple[int, int], lines: int) -> None:
        """Names the tokens of the last turn's action and of its block, relative to the turn's first token."""
        turn = self.turns[-1]
        at = turn.start
        self.turns[-1] = replace(
            turn,
            block_start=at + block[0],
            block_end=at + block[1],
            action_start=at + action[0],
            action_end=at + action[1],
            lines=lines,
        )

    def judge(self, valid: bool, calls: Sequence[str] | None = None, handoff: bool = False) -> None:
        """Records what the benchmark says of the last turn's action.

        Args:
            valid: Whether it could be executed.
            calls: Names of the tools that were called, none for a message; `None` where there is no such distinction.
            handoff: Whether the calls only hand the customer to a human.
        """
        turn = replace(self.turns[-1], valid=valid, handoff=handoff)
        self.turns[-1] = turn if calls is None else replace(turn, call=bool(calls), calls=len(calls))

    def append_observation(self, message: Suffix) -> None:
        """Adds an observation message and the next generation header."""
        at = len(self.ids)
        self.observations.append((at + message.content[0], at + message.content[1]))
        self._append(message.ids, 0, None, -1)
        self._prefix_end = len(self.ids) - message.header

    def completion(self) -> tuple[list[int], list[int], list[float]]:
        """Returns ids, mask and log-probs after the prompt."""
        p = self.prompt_length
        return self.ids[p:], self.mask[p:], self.logprobs[p:]

    def _append(self, ids: list[int], mask: int, logprobs: list[float] | None, turn: int) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        self.turn_ids += [turn] * len(ids)
