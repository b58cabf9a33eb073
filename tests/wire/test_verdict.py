"""One table says what an upstream's answer means; the rows are what vLLM really answers."""

from __future__ import annotations

import json

import pytest

from machines.faults import Fault
from motor_flow.net.http1 import Reply
from motor_flow.net.verdict import complaint, judge

ERROR = json.dumps({"error": {"message": "m", "type": "t", "param": "p", "code": 0}}).encode()
DETAIL = json.dumps({"detail": "Not Found"}).encode()

ROWS = [
    (200, b"{}", None),
    (400, ERROR, Fault.REQUEST),
    (422, ERROR, Fault.REQUEST),
    (413, b"", Fault.REQUEST),
    (404, ERROR, Fault.UNKNOWN_MODEL),
    (404, DETAIL, Fault.UNSUPPORTED),
    (404, b"<html>", Fault.UNSUPPORTED),
    (403, ERROR, Fault.UNSUPPORTED),
    (405, DETAIL, Fault.UNSUPPORTED),
    (415, DETAIL, Fault.UNSUPPORTED),
    (501, DETAIL, Fault.UNSUPPORTED),
    (401, b'{"error":"Unauthorized"}', Fault.UNAUTHORIZED),
    (408, ERROR, Fault.BUSY),
    (425, ERROR, Fault.BUSY),
    (429, ERROR, Fault.BUSY),
    (500, ERROR, Fault.FAILED),
    (503, b"", Fault.FAILED),
    (302, b"", Fault.FAILED),
]


@pytest.mark.parametrize(("status", "body", "verdict"), ROWS)
def test_judge(status, body, verdict):
    assert judge(status, body) is verdict


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (ERROR, ("m", "t", "p")),
        (DETAIL, ("Not Found", None, None)),
        (b'{"detail":[{"loc":["body"],"msg":"x"}]}', ('[{"loc":["body"],"msg":"x"}]', None, None)),
        (b'{"error":"Unauthorized"}', ("HTTP 500", None, None)),
        (b"<html>oops</html>", ("HTTP 500", None, None)),
        (b"", ("HTTP 500", None, None)),
        (b"\xff\xfe", ("HTTP 500", None, None)),
    ],
)
def test_complaint_is_the_upstreams_own_words(body, said):
    assert tuple(complaint(Reply(500, [], body))) == said
