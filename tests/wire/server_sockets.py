"""What the tests over real sockets share: a `Site` behind a listener, and applications that wait."""

from __future__ import annotations

import os
import socket

import trio

from tests.wire.server_client import Client, Site, read_body

SOON_S = 5  # never waited for in a passing test


class SocketSite(Site):
    """The same server behind a listener; leaving it drains."""

    def __init__(self, app, *, context=None, path=None, **limits):
        super().__init__(app, **limits)
        self._context = context
        self._path = path
        self.settle_s = SOON_S
        self.poll_s = 0.002

    async def __aenter__(self):
        await super().__aenter__()
        if self._path is None:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=self.server.limits.backlog)
        else:
            sock = trio.socket.socket(socket.AF_UNIX)
            await sock.bind(os.fspath(self._path))
            sock.listen(self.server.limits.backlog)
            listeners = [trio.SocketListener(sock)]
        self.address = listeners[0].socket.getsockname()
        if self._context is not None:
            listeners = [trio.SSLListener(listener, self._context) for listener in listeners]
        await self.nursery.start(lambda task_status: self.server.serve(listeners, task_status=task_status))
        self._streams = []
        return self

    async def __aexit__(self, kind, exc, traceback):
        for stream in self._streams:
            await trio.aclose_forcefully(stream)
        self.server.drain()
        return await super().__aexit__(kind, exc, traceback)

    async def open(self, receive_buffer_bytes=None):
        sock = trio.socket.socket(socket.AF_INET if self._path is None else socket.AF_UNIX)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await sock.connect(self.address)
        stream = trio.SocketStream(sock)
        self._streams.append(stream)
        return Client(stream)

    async def outcome(self):
        """The outcomes, once there is one and every connection has ended."""
        with trio.fail_after(SOON_S):
            while not self.outcomes or self.server.connections:  # noqa: ASYNC110 - the server has no one to tell
                await trio.sleep(self.poll_s)
        return self.outcomes

    def accepted(self):
        (connection,) = self.server._connections
        return connection.peer.stream


class Gate:
    """An application that says when it runs and then waits for something else than the client."""

    def __init__(self, before=None):
        self.before = before
        self.entered = trio.Event()

    async def __call__(self, scope, receive, send):
        self.scope = scope
        if self.before is not None:
            await self.before(receive, send)
        self.entered.set()
        await trio.sleep_forever()


async def read_it(receive, send):
    await read_body(receive)


async def begin_a_stream(receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x", "more_body": True})
