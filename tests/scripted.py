"""Servers that answer by script, on the in-memory network: what no well-behaved server does.

A script is a list of steps for one request: bytes to send, seconds to wait, CUT (reset), END (close), HANG. `Scripted`
maps path endings to lists of scripts, one for each request in turn; the last one repeats. Unmapped paths go to the real
simulator behind it.
"""

from __future__ import annotations

import json
from contextlib import suppress

import trio

from motor_flow.net.memory import memory_pair

CUT, END, HANG = "cut", "end", "hang"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
SSE_END = b"0\r\n\r\n"


def reply(status, body, content_type="application/json"):
    """A whole response."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def error(status, message="it broke", kind="InternalServerError", param=None):
    """An error in vLLM's shape."""
    return reply(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})


def event(data):
    """One SSE event as an HTTP chunk."""
    raw = b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(raw), raw)


def tokens(*ids, finish=None, index=0, stop_reason=None):
    """An engine event of one choice."""
    choice = {"index": index, "token_ids": list(ids), "finish_reason": finish, "stop_reason": stop_reason}
    return event({"request_id": "x", "usage": None, "choices": [choice | {"logprobs": None}]})


DONE = event(b"[DONE]")


class Scripted:
    """A connection handler in front of another one."""

    def __init__(self, world, host, plan):
        self.plan = {path: list(scripts) for path, scripts in plan.items()}
        self.behind = world.net._listening[host, 80]
        self.requests = []
        self.open = 0
        self.closed_at = None
        world.net.listen(host, 80, self)
        world.app.pool.close()  # or an idle connection would still lead to what is behind

    async def __call__(self, stream):
        buffer = b""
        while True:
            while b"\r\n\r\n" not in buffer:
                data = await stream.receive_some()
                if not data:
                    return
                buffer += data
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
            )
            while len(buffer) < length:
                buffer += await stream.receive_some()
            body, buffer = buffer[:length], buffer[length:]
            path = head.split(b" ")[1].decode()
            scripts = next((scripts for ending, scripts in self.plan.items() if path.endswith(ending)), None)
            if scripts is None:
                if await self._behind(stream, head + b"\r\n\r\n" + body):
                    return
                continue
            self.requests.append((path, json.loads(body or b"null")))
            script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
            self.open += 1
            try:
                if await self._play(stream, script):
                    return
            finally:
                self.open -= 1
                self.closed_at = trio.current_time()

    async def _play(self, stream, script):
        """Returns true when the connection is over."""
        for step in script:
            if step == CUT:
                stream.reset()
                return True
            if step == END:
                return True
            if step == HANG:
                while await stream.receive_some():
                    pass  # until the peer goes
                return True
            if isinstance(step, bytes):
                await stream.send_all(step)
            else:
                async with trio.open_nursery() as nursery:
                    gone = []

                    async def watch(nursery=nursery, gone=gone):
                        try:
                            if not await stream.receive_some():
                                gone.append(True)
                        except trio.BrokenResourceError:
                            gone.append(True)
                        nursery.cancel_scope.cancel()

                    nursery.start_soon(watch)
                    await trio.sleep(step)
                    nursery.cancel_scope.cancel()
                if gone:
                    return True
        return False

    async def _behind(self, stream, request):
        """Hand one request to the simulator, on a connection that ends with its answer. Returns true: it is over."""
        near, far = memory_pair()
        closing = request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.behind, far)

            async def forward():
                await near.send_all(closing)
                with suppress(trio.BrokenResourceError):  # the client has left
                    while data := await near.receive_some():
                        await stream.send_all(data)
                nursery.cancel_scope.cancel()

            async def watch():
                while await stream.receive_some():
                    """A pipelined request would be lost; our client sends none."""
                near.close()

            nursery.start_soon(forward)
            await watch()
        return True
