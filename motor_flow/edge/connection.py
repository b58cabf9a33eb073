"""How does one connection live from its first byte to its last?

Two tasks: the reader, here, which reads for as long as the connection lives, and the present request's `Exchange`. The
reader never waits for the application, so it sees the client leave at any time; it only stops reading, bounded, when
the application leaves a body or pipelined requests unread, and then asks the socket whether the client has hung up.

    idle --head--> exchange --finished--> idle ...        one request at a time, in order
      |                |
      +- deadline, EOF, refusal, drain, cut -> the reader ends -> the exchange ends -> last words -> closed

All deadlines of reading are one: the deadline of the reader's scope, moved by `rearm` whenever the state changes.

Source: RFC 9112 sections 9.3, 9.5 and 9.6.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable
from dataclasses import dataclass

import trio

from motor_flow.edge.asgi import ASGIApp
from motor_flow.edge.exchange import Exchange
from motor_flow.edge.http1_request import RequestParser
from motor_flow.edge.http1_response import ResponseEncoder
from motor_flow.edge.limits import Limits
from motor_flow.edge.peer import GONE, Peer
from motor_flow.errors import ClientError, MotorFlowError

READ_BYTES = 65536
HANG_UP_PROBE_S = 0.1


@dataclass(slots=True)
class Service:
    """What the connections of one server share.

    Args:
        app: the application.
        limits: their limits.
        report: told of every bug; does not raise.
        active: requests being served.
        draining: no further request is begun.

    """

    app: ASGIApp
    limits: Limits
    report: Callable[[BaseException], None]
    active: int = 0
    draining: bool = False


class Connection:
    """One client's connection.

    Attributes:
        exchange: the request being served.
        ending: nothing more is written for the present request, and no other is begun.
        gone: the client has left, or takes nothing any more.

    """

    __slots__ = (
        "_answered",
        "_body_deadline",
        "_context",
        "_cut",
        "_head_deadline",
        "_nursery",
        "_reading",
        "_refusal",
        "_rest",
        "_room",
        "ending",
        "exchange",
        "gone",
        "parser",
        "peer",
        "service",
    )

    def __init__(self, service: Service, stream: trio.abc.Stream) -> None:
        self.service = service
        self.peer = Peer(stream, service.limits)
        self.parser = RequestParser(service.limits)
        self.exchange: Exchange | None = None
        self.ending = False
        self.gone = False
        self._answered = False  # the present request has its response, and only its body is still to come
        self._cut = False
        self._refusal: MotorFlowError | None = None
        self._rest = b""  # pipelined requests
        self._room = trio.lowlevel.ParkingLot()
        self._reading = trio.CancelScope()
        self._context = contextvars.copy_context()
        self._nursery: trio.Nursery | None = None
        self._head_deadline = math.inf
        self._body_deadline: float | None = None

    async def run(self) -> None:
        """Serve the connection to its end; the caller closes the stream."""
        self.peer.configure()
        self._head_deadline = trio.current_time() + self.service.limits.header_timeout_s
        async with trio.open_nursery() as self._nursery:
            with self._reading:
                await self._read()
            if not self.ending:
                self._time_out()
        await self._part()

    # Reading

    async def _read(self) -> None:
        """Read until the client leaves; cancelled when the connection ends otherwise."""
        self.rearm()
        while True:
            if self._full and not await self._room_made():
                break
            try:
                data = await self.peer.stream.receive_some(READ_BYTES)
            except GONE:
                break
            if not data:
                break
            self._rest += data
            self._advance()
        self.depart("client disconnected")

    @property
    def _full(self) -> bool:
        unread_max = self.service.limits.pipeline_bytes_max
        return len(self._rest) >= unread_max or self.parser.buffered >= unread_max

    async def _room_made(self) -> bool:
        """Wait until the application has read; False if the client has left meanwhile."""
        while self._full:
            with trio.move_on_after(HANG_UP_PROBE_S if self.peer.tells_hang_up else math.inf):
                await self._room.park()
            if self.peer.hung_up():
                return False
        return True

    def made_room(self) -> None:
        """The application has read."""
        if self._room:
            self._room.unpark_all()
            self._body_deadline = None
            self.rearm()

    def _advance(self) -> None:
        """Parse as far as the present request goes, and begin it when its head is complete."""
        parser = self.parser
        try:
            while self._rest and not (parser.complete and self.exchange is not None):
                fresh = not parser.started
                self._rest = parser.feed(self._rest)
                if parser.head is None:
                    if fresh and parser.started:
                        self._head_deadline = trio.current_time() + self.service.limits.header_timeout_s
                elif self.exchange is not None:
                    self.exchange.notify()
                elif not self._answered:
                    self._begin()
                elif parser.complete:
                    self._next()
        except ClientError as refusal:
            self.refuse(refusal)
        else:
            self.rearm()

    def rearm(self) -> None:
        """Set the time by which the client must have sent more."""
        parser = self.parser
        if parser.head is None:
            deadline = self._head_deadline
        elif parser.complete or self._full or (self.exchange is not None and self.exchange.awaits_continue):
            deadline = math.inf  # nothing is due
        else:
            now = trio.current_time()
            if self._body_deadline is None:
                self._body_deadline = now + self.service.limits.body_total_s
            deadline = min(self._body_deadline, now + self.service.limits.body_timeout_s)
        self._reading.deadline = deadline

    def _time_out(self) -> None:
        if self.parser.head is not None:
            self.refuse(ClientError("the request's body did not arrive in time", status=408))
        elif self.parser.started:
            self.refuse(ClientError("the request's head did not arrive in time", status=408))
        else:
            self.stop()

    # Exchanges

    def _begin(self) -> None:
        assert self._nursery is not None
        assert self.parser.head is not None
        self.exchange = Exchange(self, self.parser.head)
        # Perhaps called at the end of the request before: its context variables are not this one's.
        self._context.run(self._nursery.start_soon, self.exchange.run)

    def _next(self) -> None:
        self.parser.next()
        self._answered = False
        self._body_deadline = None
        self._head_deadline = trio.current_time() + self.service.limits.keep_alive_s

    def may_go_on(self, exchange: Exchange) -> bool:
        """Whether a response that begins now may keep the connection: not if much of a body would be read in vain."""
        if self.service.draining or exchange.awaits_continue:
            return False
        left = self.parser.body_left
        return left is not None and left <= self.service.limits.pipeline_bytes_max

    def exchange_over(self, exchange: Exchange) -> None:
        """The application has returned."""
        self.exchange = None
        if not exchange.finished:
            if exchange.response.on_wire:
                self.cut(reset=exchange.response.ends_by_close)
            elif not self.ending:
                self.refuse(MotorFlowError("internal error"))
            return
        self._answered = True
        if self.ending or self.service.draining or not exchange.response.keep_alive:
            self.stop()
            return
        if self.parser.complete:
            self._next()
        else:
            self.parser.discard_body()
        self._advance()
        self.made_room()

    # Endings

    def depart(self, reason: str) -> None:
        """The client has left: so does the application."""
        self.gone = True
        self._end()
        if self.exchange is not None:
            self.exchange.abandon(reason)

    def refuse(self, error: MotorFlowError) -> None:
        """Answer the present request with an error, if nothing of a response is out, and end the connection."""
        self._refusal = error
        self._end()
        if self.exchange is not None:
            self.exchange.abandon(f"request refused: {error.message}")

    def cut(self, *, reset: bool = False) -> None:
        """End the connection so that the client sees that its response is not whole."""
        self._cut = True
        self._end()
        if reset:
            self.peer.reset_on_close()
        if self.exchange is not None:
            self.exchange.notify()

    def stop(self) -> None:
        """End the connection in good order, once the present request is served."""
        if self.exchange is None:
            self._end()

    def _end(self) -> None:
        self.ending = True
        self._reading.cancel()

    async def _part(self) -> None:
        if self.gone or self._cut:
            return
        answer = b""
        if self._refusal is not None and not self._answered:
            answer = self._encode(self._refusal)
        in_message = self.parser.started and not self.parser.complete
        await self.peer.part(answer, unread=in_message or self._refusal is not None or bool(self._rest))

    def _encode(self, error: MotorFlowError) -> bytes:
        head = self.parser.head
        response = ResponseEncoder(
            version="1.1", head_only=head is not None and head.method == "HEAD", keep_alive=False
        )
        response.start(error.status, [(b"content-type", b"application/json")])
        return response.body(error.encode(), more=False)
