"""One table says what an upstream's answer means; the rows are what vLLM really answers."""

from __future__ import annotations

import json

import pytest

from motor_flow.net.http1 import Reply
from motor_flow.net.verdict import Verdict, complaint, judge

ERROR = json.dumps({"error": {"message": "m", "type": "t", "param": "p", "code": 0}}).encode()
DETAIL = json.dumps({"detail": "Not Found"}).encode()

ROWS = [
    (200, b"{}", Verdict.OK),
    (400, ERROR, Verdict.REFUSED),
    (422, ERROR, Verdict.REFUSED),
    (413, b"", Verdict.REFUSED),
    (404, ERROR, Verdict.UNKNOWN),
    (404, DETAIL, Verdict.UNSUPPORTED),
    (404, b"<html>", Verdict.UNSUPPORTED),
    (403, ERROR, Verdict.UNSUPPORTED),
    (405, DETAIL, Verdict.UNSUPPORTED),
    (415, DETAIL, Verdict.UNSUPPORTED),
    (501, DETAIL, Verdict.UNSUPPORTED),
    (401, b'{"error":"Unauthorized"}', Verdict.UNAUTHORIZED),
    (408, ERROR, Verdict.UNAVAILABLE),
    (425, ERROR, Verdict.UNAVAILABLE),
    (429, ERROR, Verdict.UNAVAILABLE),
    (500, ERROR, Verdict.UNAVAILABLE),
    (503, b"", Verdict.UNAVAILABLE),
    (302, b"", Verdict.UNAVAILABLE),
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
