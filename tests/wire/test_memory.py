"""The in-memory network behaves like TCP where it matters."""

from __future__ import annotations

import pytest
import trio

from motor_flow.net.memory import WINDOW_BYTES, MemoryNet, memory_pair


async def test_bytes_flow_both_ways_in_order(autojump_clock):
    a, b = memory_pair()
    await a.send_all(b"ab")
    await a.send_all(b"c")
    await b.send_all(b"d")
    assert (await b.receive_some(2), await b.receive_some(), await a.receive_some()) == (b"ab", b"c", b"d")


async def test_a_full_window_stops_the_sender(autojump_clock):
    a, b = memory_pair()
    sent = []

    async def send():
        await a.send_all(b"x" * (WINDOW_BYTES + 1))
        sent.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert not sent
        await b.receive_some()
        await trio.testing.wait_all_tasks_blocked()
        assert sent


async def test_end_of_file_comes_after_the_data(autojump_clock):
    a, b = memory_pair()
    await a.send_all(b"last")
    a.close()
    assert (await b.receive_some(), await b.receive_some()) == (b"last", b"")
    with pytest.raises(trio.BrokenResourceError):
        await b.send_all(b"x")


async def test_a_half_closed_stream_still_receives(autojump_clock):
    a, b = memory_pair()
    await a.send_eof()
    assert await b.receive_some() == b""
    await b.send_all(b"answer")
    assert await a.receive_some() == b"answer"


async def test_a_reset_loses_what_was_not_read(autojump_clock):
    a, b = memory_pair()
    await a.send_all(b"lost")
    a.reset()
    with pytest.raises(trio.BrokenResourceError):
        await b.receive_some()


async def test_closing_wakes_a_blocked_peer(autojump_clock):
    a, b = memory_pair()
    ends = []

    async def receive():
        ends.append(await b.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        a.close()
    assert ends == [b""]


async def test_cancelled_receive_loses_nothing(autojump_clock):
    a, b = memory_pair()
    with trio.move_on_after(1):
        await b.receive_some()
    await a.send_all(b"kept")
    assert await b.receive_some() == b"kept"


async def test_refused_until_somebody_listens(nursery, autojump_clock):
    net = MemoryNet(nursery)
    with pytest.raises(ConnectionRefusedError):
        await net.connect("host", 1)

    async def echo(stream):
        await stream.send_all(await stream.receive_some())

    net.listen("host", 1, echo)
    stream = await net.connect("host", 1)
    await stream.send_all(b"hi")
    assert await stream.receive_some() == b"hi"
    net.refuse("host", 1)
    with pytest.raises(ConnectionRefusedError):
        await net.connect("host", 1)


async def test_stale_is_what_cannot_be_used_again(autojump_clock):
    a, b = memory_pair()
    assert not a.stale()
    await b.send_all(b"unasked")
    assert a.stale()
    c, d = memory_pair()
    d.close()
    assert c.stale()
