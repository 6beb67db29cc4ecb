"""Asking a node's agent before a pod is bound: only a definite no counts."""

import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from egpu_operator.agents import UNREACHABLE_FOR, Agents


class Probe:
    """An agent's readiness probe."""

    def __init__(self) -> None:
        self.status = 200
        self.asked = 0
        self.address = ""

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=self.status)


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    """A probe that answers."""
    served = Probe()
    app = web.Application()
    app.add_routes([web.get("/readyz", served.answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.address = "{}:{}".format(*runner.addresses[0])
    yield served
    await runner.cleanup()


@pytest.mark.parametrize(("status", "words"), [(200, ""), (503, "not registered with kubelet")])
async def test_what_the_agent_says_counts(probe: Probe, status: int, words: str) -> None:
    probe.status = status
    refusal = await Agents(address_of=lambda _: probe.address).refusal("node-a")
    assert words in refusal
    assert bool(refusal) == bool(words)


async def test_nobody_listening_is_a_no() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
    assert "is not running" in await Agents(address_of=lambda _: address).refusal("node-a")


async def test_silence_is_no_answer_and_is_not_waited_for_again() -> None:
    now = 0.0
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        address = "{}:{}".format(*silent.getsockname())
        agents = Agents(address_of=lambda _: address, clock=lambda: now)
        assert await agents.refusal("node-a") == ""
    assert await agents.refusal("node-a") == ""
    now += UNREACHABLE_FOR + 1
    assert "is not running" in await agents.refusal("node-a")


async def test_an_agent_without_an_address_is_not_asked() -> None:
    assert await Agents(address_of=lambda _: "").refusal("node-a") == ""
