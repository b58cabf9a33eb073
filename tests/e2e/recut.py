"""A real engine whose streams come in other pieces: what a slow reader, a fast engine or `--stream-interval` make."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx

GENERATE = "/inference/v1/generate"
HOP = {"connection", "transfer-encoding", "content-length", "host", "date", "server", "accept-encoding"}
LARGEST = 40  # tokens in one event


@contextlib.contextmanager
def recut(engine, seed):
    """A server in front of the engine at this URL; yields its port. What it cuts depends on seed and tokens only."""

    class Recutting(_Recutting):
        origin, chance = engine, seed

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recutting)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _Recutting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    origin: ClassVar[str]
    chance: ClassVar[int]

    def do_POST(self):
        self._forward(self.rfile.read(int(self.headers.get("content-length", 0))))

    def do_GET(self):
        self._forward(None)

    def _forward(self, body):
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        answer = httpx.request(self.command, self.origin + self.path, content=body, headers=headers, timeout=120)
        whole = answer.content
        if self.path == GENERATE and answer.headers["content-type"].startswith("text/event-stream"):
            whole = b"".join(b"data: %b\n\n" % data for data in pieces(whole, self.chance))
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(len(whole)))
        self.end_headers()
        with contextlib.suppress(OSError):  # a reader that has all it wants may leave
            self.wfile.write(whole)

    def log_message(self, *_):
        pass


def pieces(stream, seed):
    """The events of a stream, put together to others of random sizes."""
    chance = random.Random(f"{seed} {stream.count(b'data: ')}")
    waiting = {}
    for data in (line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: ")):
        event = json.loads(data) if data != b"[DONE]" else {}
        if len(event.get("choices", ())) != 1:
            yield from (json.dumps(one).encode() for one, _ in waiting.values())
            waiting.clear()
            yield data
            continue
        choice = event["choices"][0]
        before, size = waiting.pop(choice["index"], (None, chance.choice((1, 2, 3, 5, 8, 13, LARGEST))))
        if before is not None:
            _put_before(choice, before["choices"][0])
        waiting[choice["index"]] = event, size
        if len(choice["token_ids"]) >= size or choice["finish_reason"] is not None:
            del waiting[choice["index"]]
            yield json.dumps(event).encode()


def _put_before(choice, earlier):
    choice["token_ids"] = earlier["token_ids"] + choice["token_ids"]
    if choice.get("logprobs"):
        choice["logprobs"]["content"] = earlier["logprobs"]["content"] + choice["logprobs"]["content"]
