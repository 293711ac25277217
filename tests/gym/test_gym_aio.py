"""The asynchronous client: the same rules, many episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cope_gym.aio import AsyncClient, step_many
from cope_gym.errors import CopeError, InfrastructureError, InputError, LostSession, SessionError
from cope_gym.server import Address
from cope_gym.transport import Patience
from tests.gym.proxy import Proxy
from tests.gym.test_gym_client import live_sessions, once


@pytest.fixture
def proxy(address: Address) -> Iterator[Proxy]:
    proxy = Proxy(address.url)
    yield proxy
    proxy.close()


def test_many_episodes_at_once_and_none_left(address: Address) -> None:
    async def episode(client: AsyncClient, number: int) -> float:
        session = await client.create("toy", f"hall/train-{number % 12}")
        total = 0.0
        while not session.reply.done:
            total += (await session.step("forward")).reward
        return total

    async def main() -> list[float]:
        async with AsyncClient(address.url, address.token) as client:
            return await asyncio.gather(*(episode(client, i) for i in range(100)))

    before = live_sessions(address)
    assert asyncio.run(main()) == [1.0] * 100
    assert live_sessions(address) == before


def test_calls(address: Address) -> None:
    async def main() -> None:
        async with AsyncClient(address.url, address.token) as client:
            assert [facts["name"] for facts in await client.envs()] == ["toy"]
            assert (await client.tasks("toy", "test"))[1].id == "hall/test-1"
            session = await client.create("toy", seed=3, split="test", max_steps=5)
            await session.step("forward")
            twin = await session.fork()
            replies = await step_many([(session, "forward"), (twin, "back")])
            assert [getattr(reply, "observation", None) for reply in replies] == [
                "You are at door 2.",
                "You are at door 0.",
            ]
            taken = await client.resume(session.id)
            assert len(taken.transcript) == 3
            with pytest.raises(SessionError):
                await session.step("back")
            await taken.close()
            with pytest.raises(LostSession):
                await taken.step("back")
            (fault,) = await step_many([(taken, "back")])
            assert isinstance(fault, CopeError)

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["drop", "refuse"])
def test_a_lost_reply_never_runs_an_action_twice(address: Address, proxy: Proxy, log: Path, fault: str) -> None:
    async def main() -> str:
        async with AsyncClient(proxy.url, address.token, Patience(connect=2, read=5, total=5)) as client:
            proxy.rule = once(fault, "/v1/sessions")
            session = await client.create("toy")
            proxy.rule = once(fault, "/step")
            note = f"note {session.id}"
            assert (await session.step(note)).step_index == 1
            return note

    before = live_sessions(address)
    note = asyncio.run(main())
    assert log.read_text().count(note) == 1
    assert live_sessions(address) == before


def test_a_cancelled_step_goes_on_under_its_index(address: Address) -> None:
    async def main() -> None:
        async with AsyncClient(address.url, address.token) as client:
            session = await client.create("toy")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.step("wait 0.5"), 0.1)
            assert (await session.step("wait 0.5")).step_index == 1
            assert (await session.step("forward")).observation == "You are at door 1."

    asyncio.run(main())


def test_faults_are_typed(address: Address) -> None:
    async def ask(url: str, token: str) -> None:
        async with AsyncClient(url, token, Patience(connect=1, total=0.2)) as client:
            await client.create("toy", "hall/nowhere")

    with pytest.raises(InputError, match="nowhere"):
        asyncio.run(ask(address.url, address.token))
    with pytest.raises(InputError, match="COPE_TOKEN"):
        asyncio.run(ask(address.url, "wrong"))
    with pytest.raises(InfrastructureError, match="Connect"):
        asyncio.run(ask("http://127.0.0.1:9", ""))
    with pytest.raises(InputError, match="no server address"):
        asyncio.run(ask("nonsense", ""))
