"""What does one request, and one chunk of a stream, cost in CPU time: this server against hypercorn on trio?

    python tests/wire/bench_server.py [--rounds 3] [--requests 8000] [--chunks 100000]

Each server is a process of its own with the same raw ASGI application. It reports its own CPU time (user + system), so
neither the load client nor other programs count. The servers are measured in turns, round after round, because a busy
machine changes by the minute: believe the ratios of one table, not the microseconds of two.
"""

from __future__ import annotations

import argparse
import functools
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))  # runs from a checkout that is not installed
CONNECTIONS = 8
CHUNKS_PER_STREAM = 400
EVENT = b"data: " + b"x" * 202 + b"\n\n"
REQUEST_BODY = json.dumps({"model": "tiny", "prompt": "x" * 100}).encode()
REPLY = json.dumps({"id": "cmpl-1", "text": "y" * 100}).encode()


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(CHUNKS_PER_STREAM):
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        return
    while (await receive()).get("more_body"):
        pass
    reply = b"%f" % time.process_time() if scope["path"] == "/cpu" else REPLY
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": reply})


async def serve_motor_flow(port: int) -> None:
    from motor_flow.edge.server import Server  # noqa: PLC0415 - in the server's process only

    await Server(app).serve(await trio.open_tcp_listeners(port, host="127.0.0.1"))


async def serve_hypercorn(port: int) -> None:
    from hypercorn.config import Config  # noqa: PLC0415 - in the server's process only
    from hypercorn.trio import serve  # noqa: PLC0415 - in the server's process only

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.keep_alive_max_requests = 10**9
    config.errorlog = None
    await serve(app, config)


SERVERS: dict[str, Callable[[int], Awaitable[None]]] = {"motor_flow": serve_motor_flow, "hypercorn": serve_hypercorn}


class Client:
    """One keep-alive connection with blocking reads."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = b"127.0.0.1:%d" % port

    def close(self) -> None:
        self._socket.close()

    def post(self, path: bytes) -> bytes:
        length = b"content-length: %d\r\n" % len(REQUEST_BODY)
        self._socket.sendall(b"POST %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (path, self._host, length) + REQUEST_BODY)
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._read()
        head, _, body = got.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        left = int(fields[b"content-length"]) - len(body)
        while left > 0:
            data = self._read()
            body += data
            left -= len(data)
        return body

    def stream(self) -> None:
        self._socket.sendall(b"GET /stream HTTP/1.1\r\nhost: %b\r\n\r\n" % self._host)
        tail = b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            tail = (tail + self._read())[-16:]

    def _read(self) -> bytes:
        data = self._socket.recv(262144)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data


def cpu_s(port: int) -> float:
    client = Client(port)
    try:
        return float(client.post(b"/cpu"))
    finally:
        client.close()


def measure(port: int, times: int, call: Callable[[Client], object]) -> float:
    """Server CPU microseconds per call."""

    def work() -> None:
        client = Client(port)
        for _ in range(times // CONNECTIONS):
            call(client)
        client.close()

    before = cpu_s(port)
    threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (cpu_s(port) - before) / (times // CONNECTIONS * CONNECTIONS) * 1e6


def start(name: str, stack: ExitStack) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([sys.executable, sys.argv[0], "--serve", name, "--port", str(port)])
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for _ in range(100):
        try:
            cpu_s(port)
        except ConnectionRefusedError:
            threading.Event().wait(0.1)
        else:
            return port
    raise TimeoutError(f"{name} did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        trio.run(functools.partial(SERVERS[args.serve], args.port))
        return
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in SERVERS}
    with ExitStack() as stack:
        ports = {name: start(name, stack) for name in SERVERS}
        for port in ports.values():
            measure(port, 800, lambda client: client.post(b"/json"))
        for _ in range(args.rounds):
            for name, port in ports.items():
                request = measure(port, args.requests, lambda client: client.post(b"/json"))
                stream = measure(port, args.chunks // CHUNKS_PER_STREAM, Client.stream)
                results[name].append((request, stream / CHUNKS_PER_STREAM))
    print(f"{'server':12} {'us CPU/request min..med':>24} {'us CPU/chunk min..med':>24}   times motor_flow (medians)")
    ours = [statistics.median(column) for column in zip(*results["motor_flow"], strict=True)]
    for name, rows in results.items():
        columns = list(zip(*rows, strict=True))
        medians = [statistics.median(column) for column in columns]
        cells = [f"{min(c):.1f} .. {m:.1f}" for c, m in zip(columns, medians, strict=True)]
        ratios = [f"{m / o:.1f}" for m, o in zip(medians, ours, strict=True)]
        print(f"{name:12} {cells[0]:>24} {cells[1]:>24}   request {ratios[0]}, chunk {ratios[1]}")


if __name__ == "__main__":
    main()
