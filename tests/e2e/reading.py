"""A client that reads one stream in a thread, with the time of every piece, and what makes two streams the same."""

from __future__ import annotations

import itertools
import json
import threading
import time

import httpx

from motor_flow.views.parity.answers import read_answer
from motor_flow.views.parity.compare import differences

USAGE = {"stream": True, "stream_options": {"include_usage": True}}


class Reading(threading.Thread):
    """A client that reads one stream to its end, and when each piece came."""

    def __init__(self, infer, name, request):
        super().__init__(daemon=True)
        self._ask = (infer + request[0], request[1] | USAGE, {"x-request-id": name})
        self.name, self.pieces, self.status, self.failure = name, [], 0, None
        self.start()

    def run(self):
        url, body, headers = self._ask
        try:
            with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as reply:
                self.status, self.media_type = reply.status_code, reply.headers["content-type"]
                for data in reply.iter_raw():
                    self.pieces.append((time.monotonic(), data))
        except httpx.HTTPError as exc:
            self.failure = exc

    def result(self):
        self.join(90)
        assert not self.is_alive(), f"{self.name} is still not complete: {self.body[-500:]}"
        assert self.failure is None, (self.failure, self.body[-500:])
        return self

    @property
    def body(self):
        return b"".join(data for _, data in self.pieces)

    @property
    def answer(self):
        return read_answer(self.status, self.media_type, self.body)

    @property
    def gap(self):
        """The longest that the client waited between two pieces."""
        return max((b - a for (a, _), (b, _) in itertools.pairwise(self.pieces)), default=0.0)

    def resumed(self, moment, index=0):
        """How long after this moment a piece of this choice came."""
        return next(t for t, data in self.pieces if t > moment and b'"index":%d' % index in data) - moment


def check_same(want, got):
    """The same answer under one id, and the stream has one end."""
    assert list(map(str, differences(want.answer, got.answer))) == []
    events = [part.removeprefix(b"data: ") for part in got.body.split(b"\n\n")]
    assert events[-2:] == [b"[DONE]", b""]
    chunks = [json.loads(event) for event in events[:-2]]
    assert len({chunk["id"] for chunk in chunks}) == len({chunk["created"] for chunk in chunks}) == 1
