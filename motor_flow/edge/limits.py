"""How much time, memory and how many connections may one HTTP server spend on its clients?

Every deadline and every buffer of the server is one of these numbers; nothing in it is unbounded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one server; seconds and bytes.

    Args:
        header_timeout_s: from the first byte of a request's head to its end; a trickle of bytes does not extend it.
            Also how long a new connection may stay silent.
        body_timeout_s: silence while the rest of a body is due.
        body_total_s: a whole body, so that a trickle cannot hold a request open for ever.
        keep_alive_s: an idle connection between two requests.
        write_stall_s: a write of which the client takes nothing.
        vanish_s: about how long a client's host may be unreachable, without a word, before TCP says that it is gone.
        farewell_s: time for a client to read a last answer before its connection is closed.
        header_bytes_max: a request's head; also what chunked framing and trailers may cost beyond their data.
        body_bytes_max: a request's body.
        pipeline_bytes_max: bytes read ahead of what the application has asked for: body, or pipelined requests.
        send_buffer_bytes: the kernel's buffer of one connection (SO_SNDBUF; Linux doubles it).
        connections_max: open connections before the server stops accepting.
        backlog: connections the kernel may queue meanwhile; for whoever opens the listeners.

    """

    header_timeout_s: float = 10
    body_timeout_s: float = 30
    body_total_s: float = 600
    keep_alive_s: float = 75
    write_stall_s: float = 60
    vanish_s: float = 120
    farewell_s: float = 1
    header_bytes_max: int = 65536
    body_bytes_max: int = 32 * 1024 * 1024
    pipeline_bytes_max: int = 65536
    send_buffer_bytes: int = 131072
    connections_max: int = 10000
    backlog: int = 1024
