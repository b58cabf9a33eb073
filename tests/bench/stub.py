"""A sidecar and an engine that cost next to nothing, so that a benchmark measures what stands before them.

One asyncio process on httptools (asyncio, because its protocols are the cheapest server in Python): render, generate
(a stream of N one-token chunks, all at once) and streaming derender.

    python stub.py PORT CHUNKS
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - see above
import json
import sys

import httptools

RENDERED = json.dumps(
    {
        "request_id": "cmpl-x",
        "token_ids": list(range(100, 164)),
        "sampling_params": {"temperature": 0.0, "max_tokens": 1024},
        "model": "tiny",
        "stream": True,
        "stream_options": None,
    }
).encode()
STATE = {"prev_tokens": ["a", "b", "c"], "prefix_offset": 0, "read_offset": 3, "role_sent": True}
DERENDERED = json.dumps(
    {
        "chunk": {
            "id": "generate-tokens-x",
            "object": "text_completion",
            "created": 1,
            "model": "tiny",
            "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None, "stop_reason": None}],
            "usage": None,
        },
        "stream_state": STATE,
    }
).encode()
LAST = DERENDERED.replace(b'"finish_reason": null', b'"finish_reason": "length"')


def event(token: int, finish: str | None) -> bytes:
    choice = {"index": 0, "finish_reason": finish, "stop_reason": None, "token_ids": [token], "logprobs": None}
    return b"data: %b\n\n" % json.dumps({"request_id": "x", "usage": None, "choices": [choice]}).encode()


def whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


class Protocol(asyncio.Protocol):
    stream = b""

    def connection_made(self, transport):
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = []

    def data_received(self, data):
        self.parser.feed_data(data)

    def on_url(self, url):
        self.url = url
        self.body = []

    def on_body(self, body):
        self.body.append(body)

    def on_message_complete(self):
        if self.url.endswith(b"/derender"):
            last = b'"finish_reason":"length"' in b"".join(self.body).replace(b": ", b":")
            self.transport.write(whole(LAST if last else DERENDERED))
        elif self.url.endswith(b"/render"):
            self.transport.write(whole(b"[%b]" % RENDERED))
        elif self.url.endswith(b"/generate"):
            self.transport.write(self.stream)
        else:
            self.transport.write(whole(b'{"version":"0.33.0"}' if self.url == b"/version" else b'{"data":[]}'))


async def main() -> None:
    port, chunks = int(sys.argv[1]), int(sys.argv[2])
    events = [event(i, "length" if i == chunks - 1 else None) for i in range(chunks)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in [*events, b"data: [DONE]\n\n"])
    Protocol.stream = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + body
        + b"0\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Protocol, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
