"""A real engine whose streams come in other pieces: what a slow reader, a fast engine or `--stream-interval` make."""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx

GENERATE = "/inference/v1/generate"
HOP = {"connection", "transfer-encoding", "content-length", "host", "date", "server", "accept-encoding"}
SIZES = (1, 2, 3, 5, 8, 13, 40)  # tokens in one event
PACE_S = 0.003


@contextlib.contextmanager
def recut(engine, seed):
    """A server in front of the engine at this URL; yields its port. What it cuts depends on seed and tokens only."""

    class Recutting(_Recutting):
        origin, chance = engine, seed

    server = _Server(("127.0.0.1", 0), Recutting)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), OSError):  # a reader that has all it wants may leave
            super().handle_error(request, client_address)


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
        parts = [(answer.content, 0)]
        if self.path == GENERATE and answer.headers["content-type"].startswith("text/event-stream"):
            parts = [(b"data: %b\n\n" % data, wait) for data, wait in recut_events(answer.content, self.chance)]
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(sum(len(part) for part, _ in parts)))
        self.end_headers()
        with contextlib.suppress(OSError):  # a reader that has all it wants may leave
            for part, wait in parts:
                time.sleep(wait)  # noqa: TID251 - the pace of an engine
                self.wfile.write(part)

    def log_message(self, *_):
        pass


def recut_events(stream, seed):
    """The events of a stream in other sizes, each with the seconds before it.

    How they are cut follows from seed and tokens alone, so the engine's own events are cut to single tokens first.
    """
    events = [json.loads(data) for data in _data(stream) if data != b"[DONE]"]
    tokens = [token for event in events for token in _single_tokens(event)]
    spoken = [event["choices"][0]["token_ids"] for event in tokens if event.get("choices")]
    chance, waiting = random.Random(f"{seed} {spoken}"), {}
    for event in tokens:
        if not event.get("choices"):  # usage, or an error
            yield json.dumps(event).encode(), 0
            continue
        choice = event["choices"][0]
        before, size = waiting.pop(choice["index"], (None, chance.choice(SIZES)))
        whole = event if before is None else _joined(before, event)
        if len(whole["choices"][0]["token_ids"]) < size and choice["finish_reason"] is None:
            waiting[choice["index"]] = whole, size
        else:
            yield json.dumps(whole).encode(), chance.choice((0, 0, PACE_S))
    for whole, _ in waiting.values():  # the engine has failed: nothing is lost
        yield json.dumps(whole).encode(), 0
    yield b"[DONE]", 0


def _data(stream):
    return [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: ")]


def _single_tokens(event):
    """Events with one token of one choice; what an event says once, the first one says, and the last one the finish."""
    choices = [(choice, at) for choice in event.get("choices", ()) for at in range(max(1, len(choice["token_ids"])))]
    if not choices:
        yield event
    for number, (choice, at) in enumerate(choices):
        part = {**choice, "token_ids": choice["token_ids"][at : at + 1]}
        if choice.get("logprobs"):
            part["logprobs"] = {"content": choice["logprobs"]["content"][at : at + 1]}
        if at + 1 < len(choice["token_ids"]):
            part |= {"finish_reason": None, "stop_reason": None}
        top = event if number == 0 else {"request_id": event["request_id"]}
        yield {**top, "choices": [part]}


def _joined(before, after):
    """Two events of one choice as one, as vLLM does it for a reader that is late."""
    earlier, later = before["choices"][0], after["choices"][0]
    choice = {**later, "token_ids": earlier["token_ids"] + later["token_ids"]}
    if later.get("logprobs"):
        choice["logprobs"] = {"content": earlier["logprobs"]["content"] + later["logprobs"]["content"]}
    return {**after, **before, "choices": [choice]}
