"""Turns the calls of many episode threads into batches for one policy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from cope_gym.evaluate.policies import Policy, Prompt, Reply

Act = Callable[[Prompt], Reply]
_LINGER = 0.03  # seconds without a further prompt after which a batch is closed; an environment step takes less


class Batcher:
    """Gathers waiting prompts up to the policy's batch size and runs them on one thread.

    Within a batch, prompts are ordered by task, sample and turn, so that the order of arrival has no effect.

    Args:
        policy: A policy with `batch_size` > 1.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: SimpleQueue[tuple[Prompt, Future[Reply]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="policy", daemon=True)
        self._thread.start()

    def act(self, prompt: Prompt) -> Reply:
        """Waits for the reply to one prompt."""
        reply: Future[Reply] = Future()
        self._waiting.put((prompt, reply))
        return reply.result()

    def close(self) -> None:
        """Ends the thread after the batch in work."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while first := self._waiting.get():
            batch = [first]
            closing = False
            while len(batch) < self._policy.batch_size and not closing:
                try:
                    item = self._waiting.get(timeout=_LINGER)
                except Empty:
                    break
                if item:
                    batch.append(item)
                closing = item is None
            self._answer(sorted(batch, key=lambda pair: (pair[0].task_id, pair[0].sample, pair[0].turn)))
            if closing:
                return

    def _answer(self, batch: list[tuple[Prompt, Future[Reply]]]) -> None:
        try:
            replies = self._policy.act([prompt for prompt, _ in batch])
            for (_, future), reply in zip(batch, replies, strict=True):
                future.set_result(reply)
        except BaseException as error:  # whatever it was, it belongs to the threads that wait
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)


def single(policy: Policy) -> Act:
    """Returns `act` for one prompt of a policy that takes one at a time."""
    return lambda prompt: policy.act([prompt])[0]
