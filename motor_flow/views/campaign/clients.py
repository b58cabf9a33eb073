"""How does a client of a campaign behave?

It asks over real HTTP on the in-memory network, reads at its own speed, and may leave at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import trio

from motor_flow.net.http1 import Pool, TransportFault
from motor_flow.net.memory import MemoryNet
from motor_flow.net.stream import ByteStream, Origin
from motor_flow.views.campaign.scenes import Scene

SLOW_PIECE_BYTES = 64


@dataclass(slots=True)
class Received:
    """What a client has got.

    Attributes:
        ended: the response came to its end.
        left: the client left before that.
        trouble: why it did not end otherwise.

    """

    status: int = 0
    media_type: str = ""
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    left: bool = False
    trouble: str = ""


class _SlowSender:
    """A stream whose owner sends in small pieces."""

    def __init__(self, stream: ByteStream, pause_s: float) -> None:
        self._stream = stream
        self._pause_s = pause_s
        self.receive_some, self.close, self.stale = stream.receive_some, stream.close, stream.stale

    async def send_all(self, data: bytes) -> None:
        for at in range(0, len(data), SLOW_PIECE_BYTES):
            await self._stream.send_all(data[at : at + SLOW_PIECE_BYTES])
            await trio.sleep(self._pause_s)


async def play(net: MemoryNet, to: Origin, scene: Scene) -> Received:
    """Ask, and read to the end, or until the client leaves."""
    received = Received()

    async def dial(origin: Origin) -> ByteStream:
        stream = await net.dial(origin)
        return _SlowSender(stream, scene.send_pause_s) if scene.send_pause_s else stream

    pool = Pool(dial)
    try:
        with trio.CancelScope() as stay:
            if scene.leaves_s is not None:
                stay.deadline = trio.current_time() + scene.leaves_s
            await _read(pool, to, scene, received)
        received.left = stay.cancelled_caught
    except TransportFault as fault:
        received.trouble = str(fault)
    finally:
        pool.close()
    return received


async def _read(pool: Pool, to: Origin, scene: Scene, received: Received) -> None:
    raw = msgspec.json.encode(scene.body)
    head = (
        f"POST {scene.path} HTTP/1.1\r\nhost: {to.host}\r\ncontent-type: application/json\r\n"
        f"x-request-id: {scene.name}\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    exchange = await pool.start(to, head.encode() + raw)
    try:
        received.status = exchange.status
        received.media_type = next((v.decode() for k, v in exchange.headers if k.lower() == b"content-type"), "")
        while data := await exchange.receive():
            received.body += data
            if scene.read_pause_s:
                await trio.sleep(scene.read_pause_s)
        received.ended = True
    finally:
        exchange.close()
