"""vLLM as a generation backend: in this process through the engine's request and step calls, or over HTTP.

Finished turns leave and new ones join while others are being sampled; nothing waits for a batch. vLLM itself is never
imported here before an engine exists.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any
from uuid import uuid4

import requests

from cope_gym.errors import InfrastructureError
from cope_train.rollout.backends import Completion, Request, Sampling, seed_number

_POLL_SECONDS = 0.05


class Admission:
    """When turns that wait join those that are being sampled.

    A step of vLLM that also reads a prompt cannot use the CUDA graph of whole decoding steps. Where episodes go their
    own ways, nearly every step would be such a one; so those that are ready wait for each other, a few steps at most.

    Args:
        steps: Most steps that a turn waits.
        share: Part of those running from which on the waiting ones are enough.
    """

    def __init__(self, steps: int = 8, share: float = 0.125) -> None:
        self.steps, self.share = steps, share
        self._since = 0

    def due(self, waiting: int, running: int) -> bool:
        """Says, once before every step, whether the waiting ones join now."""
        self._since += 1
        if waiting and (self._since >= self.steps or waiting >= self.share * running):
            self._since = 0
            return True
        return False


def _parameters(sampling: Sampling, stop_ids: Sequence[int], request: Request) -> dict[str, Any]:
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or 0.0,
        "max_tokens": request.max_tokens,
        "logprobs": 0,
        "stop_token_ids": list(stop_ids),
    }


class EngineBackend:
    """The engine of a colocated `vllm.LLM`, stepped by hand.

    Args:
        llm: `trainer.vllm_generation.llm`.
        sampling: How tokens are drawn.
        stop_ids: Ids that end a turn.
        seeded: Draw every turn from its own seed; slower, repeatable.
        lora: A `LoRARequest` of vLLM, where an adapter plays.
    """

    batches = False

    def __init__(
        self, llm: Any, sampling: Sampling, stop_ids: Sequence[int], seeded: bool = False, lora: Any = None
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.engine = llm.llm_engine
        self.context: int = self.engine.model_config.max_model_len
        self.sampling, self.stop_ids, self.seeded, self.lora = sampling, tuple(stop_ids), seeded, lora
        self._params, self._final = SamplingParams, RequestOutputKind.FINAL_ONLY
        self._keys: dict[str, Hashable] = {}
        self._waiting: list[Request] = []
        self.admission = Admission()
        self._known: dict[int, Any] = {}  # parameters by length: the engine copies them, making them takes as long
        self._name, self._count = uuid4().hex, 0  # an engine may still hold turns of a rollout that was broken off

    def submit(self, request: Request) -> None:
        """Queues a request."""
        self._waiting.append(request)

    def _admit(self, request: Request) -> None:
        name = f"{self._name}-{self._count}"
        self._count += 1
        self._keys[name] = request.key
        prompt = {"prompt_token_ids": request.ids}
        self.engine.add_request(name, prompt, self._parameters(request), lora_request=self.lora)

    def _parameters(self, request: Request) -> Any:
        known = None if self.seeded else self._known.get(request.max_tokens)
        if known is None:
            params = _parameters(self.sampling, self.stop_ids, request)
            params |= {"seed": seed_number(*request.seed) % 2**31} if self.seeded else {}
            known = self._params(**params, detokenize=False, output_kind=self._final)
            self._known[request.max_tokens] = known
        return known

    def poll(self) -> list[Completion]:
        """Runs one step of the engine."""
        if self.admission.due(len(self._waiting), len(self._keys)):
            for request in self._waiting:
                self._admit(request)
            self._waiting.clear()
        return [self._completion(output) for output in self.engine.step() if output.finished]

    def release(self, key: Hashable) -> None:
        """Takes a pending request back."""
        self._waiting = [request for request in self._waiting if request.key != key]
        names = [name for name, pending in self._keys.items() if pending == key]
        for name in names:
            del self._keys[name]
        if names:
            self.engine.abort_request(names)

    def _completion(self, output: Any) -> Completion:
        sampled = output.outputs[0]
        ids = list(sampled.token_ids)
        logprobs = [entry[token].logprob for token, entry in zip(ids, sampled.logprobs, strict=True)]
        return Completion(self._keys.pop(output.request_id), ids, logprobs, sampled.finish_reason == "stop")


class ServerBackend:
    """A `vllm serve` process; every rank sends its own requests, so that ranks never wait for each other.

    Args:
        base_url: Address of the server.
        sampling: How tokens are drawn.
        stop_ids: Ids that end a turn.
        connections: Most requests at the same time.
        timeout: Seconds after which a request counts as lost.
    """

    batches = False

    def __init__(
        self,
        base_url: str,
        sampling: Sampling,
        stop_ids: Sequence[int],
        connections: int = 256,
        timeout: float = 600.0,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.sampling, self.stop_ids, self.timeout = sampling, tuple(stop_ids), timeout
        self._session = requests.Session()
        self._session.mount("http", requests.adapters.HTTPAdapter(pool_maxsize=connections))
        self._pool = ThreadPoolExecutor(connections, "vllm")
        self._pending: dict[Future[Completion], Hashable] = {}
        [served, *_] = self._call("get", "/v1/models")["data"]
        self.model, self.context = served["id"], served["max_model_len"]

    def submit(self, request: Request) -> None:
        """Sends a request."""
        self._pending[self._pool.submit(self._complete, request)] = request.key

    def poll(self) -> list[Completion]:
        """Returns the replies that have arrived."""
        done, _ = wait(self._pending, _POLL_SECONDS, FIRST_COMPLETED)
        for future in done:
            del self._pending[future]
        return [future.result() for future in done]

    def release(self, key: Hashable) -> None:
        """Drops a pending request; its reply is ignored."""
        for future in [future for future, pending in self._pending.items() if pending == key]:
            future.cancel()
            del self._pending[future]

    def close(self) -> None:
        """Ends the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._session.close()

    def _complete(self, request: Request) -> Completion:
        body = _parameters(self.sampling, self.stop_ids, request)
        body |= {"model": self.model, "prompt": request.ids, "return_token_ids": True, "seed": _seed(request)}
        [choice] = self._call("post", "/v1/completions", json=body)["choices"]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        return Completion(request.key, ids, logprobs, choice["finish_reason"] == "stop")

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        try:
            reply = self._session.request(method, self.base_url + path, timeout=self.timeout, **kwargs)
            reply.raise_for_status()
        except requests.RequestException as error:
            raise InfrastructureError(
                f"the vLLM server at {self.base_url} failed: {error}", type="connection", retryable=True
            ) from error
        return reply.json()


def _seed(request: Request) -> int:
    return seed_number(*request.seed) % 2**31
