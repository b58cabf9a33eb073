"""Calls go to the sidecar with the fewest in flight, and an idle connection that was closed costs nothing."""

from __future__ import annotations

import pytest
import trio

from motor_flow.net.http1 import PeerClosed, Pool
from motor_flow.net.memory import MemoryNet
from motor_flow.net.sidecars import Sidecars
from motor_flow.net.stream import Origin

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ORIGINS = [Origin("one", 1), Origin("two", 2)]


async def test_the_least_busy_one_is_taken(nursery, autojump_clock):
    net = MemoryNet(nursery)
    taken = []

    def handler(name, seconds):
        async def serve(stream):
            while await stream.receive_some():
                taken.append(name)
                await trio.sleep(seconds)
                await stream.send_all(OK)

        return serve

    net.listen("one", 1, handler("one", 10))
    net.listen("two", 2, handler("two", 1))
    sidecars = Sidecars(Pool(net.dial), ORIGINS, api_key="k")
    async with trio.open_nursery() as calls:
        for _ in range(6):
            calls.start_soon(_post, sidecars)
            await trio.sleep(2)
    assert (taken.count("one"), taken.count("two")) == (1, 5)
    assert [sidecar.in_flight for sidecar in sidecars.all] == [0, 0]


async def test_idle_sidecars_take_turns(nursery, autojump_clock):
    sidecars = Sidecars(Pool(MemoryNet(nursery).dial), ORIGINS)
    picked = [sidecars.pick().origin.host for _ in range(4)]
    assert sorted(picked) == ["one", "one", "two", "two"]


@pytest.mark.parametrize(("first", "works"), [([OK, "cut"], True), (["cut"], False)])
async def test_a_call_is_repeated_once_when_the_idle_connection_was_gone(nursery, autojump_clock, first, works):
    net = MemoryNet(nursery)
    script = [*first, OK]

    async def serve(stream):
        while await stream.receive_some():
            step = script.pop(0)
            if step == "cut":
                stream.reset()
                return
            await stream.send_all(step)

    net.listen("one", 1, serve)
    sidecars = Sidecars(Pool(net.dial), ORIGINS[:1])
    if works:
        assert (await _post(sidecars)).body == b"ok"
        assert (await _post(sidecars)).body == b"ok"
    else:
        with pytest.raises(PeerClosed):
            await _post(sidecars)


async def _post(sidecars):
    return await sidecars.post("/x", b"{}", timeout_s=60, headers=b"x-request-id: r\r\n")
