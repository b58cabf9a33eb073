"""What the server answers itself: requests it cannot read, limits, slow clients, and an application that fails."""

from __future__ import annotations

import pytest
import trio
from server_client import GET, Client, Site, chunked, post, read_body, reply
from trio.testing import memory_stream_pair

from motor_flow.edge.asgi import ApplicationError

TOO_MUCH = b"x" * 101
CHUNKED = b"POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n"


def check(answer, status, kind):
    assert answer.status == status
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.headers[b"connection"] == b"close"
    assert b"date" in answer.headers
    assert answer.error["message"]
    assert {**answer.error, "message": ""} == {
        "message": "",
        "type": kind,
        "param": None,
        "code": status,
        "stage": "client",
    }


@pytest.mark.parametrize(
    ("request_bytes", "status", "kind"),
    [
        (b"nonsense\r\n\r\n", 400, "BadRequestError"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "BadRequestError"),
        (post(b"x", b"transfer-encoding: chunked"), 400, "BadRequestError"),
        (b"GET / HTTP/2.0\r\nhost: test\r\n\r\n", 505, "HTTP Version Not Supported"),
        (GET[:-2] + b"x: " + b"y" * 70000 + b"\r\n\r\n", 431, "Request Header Fields Too Large"),
        (post(TOO_MUCH), 413, "Request Entity Too Large"),
        (post(TOO_MUCH)[: -len(TOO_MUCH)], 413, "Request Entity Too Large"),
    ],
)
async def test_refused_before_the_application_is_asked(autojump_clock, request_bytes, status, kind):
    async with Site(body_bytes_max=100) as site:
        client = site.connect()
        await client.send(request_bytes)
        check(await client.answer(), status, kind)
        await client.closed()
    assert site.outcomes == []


async def test_a_refusal_comes_after_the_answers_before_it(autojump_clock):
    async def app(scope, receive, send):
        await trio.sleep(1)
        await reply(send, b"ok")

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET + GET + b"nonsense\r\n\r\n" + GET)
        assert (await client.answer()).body == b"ok"
        assert (await client.answer()).body == b"ok"
        check(await client.answer(), 400, "BadRequestError")
        await client.closed()


async def test_head_request_is_refused_without_a_body(autojump_clock):
    async def app(scope, receive, send):
        raise ValueError("bug")

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET.replace(b"GET", b"HEAD"))
        answer = await client.answer(head_only=True)
        assert answer.status == 500
        await client.closed()
        site.bugs.clear()


async def test_refused_client_has_time_to_read_but_not_for_ever(autojump_clock):
    """The write side is shut at once; what the client still sends is read, for `farewell_s`."""
    async with Site(farewell_s=3) as site:
        client = site.connect()
        await client.send(b"nonsense\r\n\r\n")
        await client.answer()
        await client.closed()
        start = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await client.trickle(b"more" * 100, 0.1)
        assert trio.current_time() - start == pytest.approx(3, abs=0.2)


async def test_farewell_ends_when_the_client_leaves(autojump_clock):
    async with Site(farewell_s=100) as site:
        client = site.connect()
        await client.send(b"nonsense\r\n\r\n")
        await client.answer()
        await trio.sleep(1)
        assert site.server.connections == 1
        await client.leave()
        await site.settled()
        assert trio.current_time() < 2


async def test_farewell_is_bounded_when_the_client_reads_nothing(autojump_clock):
    async with Site(farewell_s=3) as site:
        ours, theirs = memory_stream_pair()
        theirs.send_stream.send_all_hook = trio.sleep_forever
        client = site.adopt(ours, theirs)
        await client.send(b"nonsense\r\n\r\n")
        await trio.sleep(4)
        assert site.server.connections == 0


# Bodies that turn out bad while the application reads

BAD_BODIES = pytest.mark.parametrize(
    ("rest", "status"), [(b"65\r\n" + TOO_MUCH + b"\r\n", 413), (b"nonsense", 400), (b"fffffffffffffffff\r\n", 400)]
)


@BAD_BODIES
async def test_application_that_reads_is_cancelled_and_the_client_told(autojump_clock, rest, status):
    async with Site(read_forever, body_bytes_max=100) as site:
        client = site.connect()
        await client.send(CHUNKED + b"1\r\nx\r\n")
        await trio.sleep(1)
        await client.send(rest)
        assert (await client.answer()).status == status
        await client.closed()
    assert len(site.outcomes) == 1
    assert site.outcomes[0].startswith("cancelled: request refused: ")


async def read_forever(scope, receive, send):
    await read_body(receive)
    raise AssertionError("the body never ends well")


@BAD_BODIES
async def test_response_that_has_begun_is_cut(autojump_clock, rest, status):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"partial", "more_body": True})
        await read_forever(scope, receive, send)

    async with Site(app, body_bytes_max=100) as site:
        client = site.connect()
        await client.send(CHUNKED)
        await client.until(b"partial\r\n")
        await client.send(rest)
        await client.closed()
    assert site.outcomes[0].startswith("cancelled: request refused: ")


@BAD_BODIES
async def test_response_that_is_complete_gets_no_second_answer(autojump_clock, rest, status):
    async def app(scope, receive, send):
        await reply(send, b"ok")
        await trio.sleep(5)

    async with Site(app, body_bytes_max=100) as site:
        client = site.connect()
        await client.send(CHUNKED)
        assert (await client.answer()).body == b"ok"
        await client.send(rest)
        await client.closed()
    assert site.outcomes == ["returned"]


# Time


async def test_silent_connection_is_closed_without_a_word(autojump_clock):
    async with Site(header_timeout_s=10) as site:
        client = site.connect()
        await client.closed()
        assert trio.current_time() == pytest.approx(10)


async def test_a_trickled_head_is_not_waited_for(autojump_clock):
    async with Site(header_timeout_s=10) as site, trio.open_nursery() as nursery:
        client = site.connect()
        nursery.start_soon(client.trickle, GET[:-2] + b"x: y\r\n" * 1000, 1)
        check(await client.answer(), 408, "Request Timeout")
        assert trio.current_time() == pytest.approx(10)
        nursery.cancel_scope.cancel()


async def test_a_trickled_head_that_is_in_time_is_served(autojump_clock):
    async with Site(header_timeout_s=100) as site:
        client = site.connect()
        await client.trickle(GET, 1)
        assert (await client.answer()).status == 200


async def test_the_next_head_has_its_own_time(autojump_clock):
    async with Site(header_timeout_s=10, keep_alive_s=75) as site:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        await trio.sleep(74)
        await client.send(GET[:5])
        await trio.sleep(9)
        await client.send(GET[5:])
        assert (await client.answer()).status == 200
        await client.send(GET[:5])
        start = trio.current_time()
        check(await client.answer(), 408, "Request Timeout")
        assert trio.current_time() - start == pytest.approx(10)


async def test_idle_connection_is_closed_without_a_word(autojump_clock):
    async with Site(keep_alive_s=75) as site:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        start = trio.current_time()
        await client.closed()
        assert trio.current_time() - start == pytest.approx(75)


async def test_line_ends_do_not_keep_an_idle_connection(autojump_clock):
    async with Site(keep_alive_s=75) as site, trio.open_nursery() as nursery:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        start = trio.current_time()
        nursery.start_soon(client.trickle, b"\r\n" * 70, 1)
        await client.closed()
        assert trio.current_time() - start == pytest.approx(75)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("request_bytes", [post(b"x" * 10)[:-5], CHUNKED + b"5\r\nxx"])
async def test_silence_while_a_body_is_due(autojump_clock, request_bytes):
    async with Site(body_timeout_s=30) as site:
        client = site.connect()
        await client.send(request_bytes)
        await trio.sleep(29)
        await client.send(b"x")
        check(await client.answer(), 408, "Request Timeout")
        assert trio.current_time() == pytest.approx(29 + 30)
    assert site.outcomes == ["cancelled: request refused: the request's body did not arrive in time"]


async def test_a_trickled_body_is_not_waited_for_for_ever(autojump_clock):
    async with Site(body_timeout_s=30, body_total_s=100) as site, trio.open_nursery() as nursery:
        client = site.connect()
        await client.send(post(b"x" * 1000)[:-1000])
        nursery.start_soon(client.trickle, b"x" * 1000, 1)
        check(await client.answer(), 408, "Request Timeout")
        assert trio.current_time() == pytest.approx(100)
        nursery.cancel_scope.cancel()


async def test_a_slow_application_is_not_held_against_the_client(autojump_clock):
    async def app(scope, receive, send):
        await trio.sleep(1000)
        await reply(send, await read_body(receive))

    body = b"x" * 5000
    async with Site(app, pipeline_bytes_max=1000) as site, trio.open_nursery() as nursery:
        client = site.adopt(*trio.testing.lockstep_stream_pair())

        async def upload():
            await client.send(post(body)[:-5000])
            for _ in range(10):
                await client.send(b"x" * 500)

        nursery.start_soon(upload)
        assert (await client.answer()).body == body


async def test_silence_after_an_early_answer_ends_the_connection(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, b"ok")

    async with Site(app, body_timeout_s=30) as site:
        client = site.connect()
        await client.send(post(b"x" * 10)[:-5])
        assert (await client.answer()).body == b"ok"
        await client.closed()
        assert trio.current_time() == pytest.approx(30)


# An application that fails


async def crash(scope, receive, send):
    raise ValueError("secret")


async def crash_in_a_nursery(scope, receive, send):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(crash, scope, receive, send)


async def crash_after_start(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ValueError("secret")


@pytest.mark.parametrize("app", [crash, crash_in_a_nursery, crash_after_start])
async def test_crash_before_anything_is_sent_is_a_500_without_detail(autojump_clock, app):
    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        answer = await client.answer()
        check(answer, 500, "InternalServerError")
        assert answer.error["message"] == "internal error"
        assert b"secret" not in answer.body
        await client.closed()
        assert [repr(bug) for bug in site.bugs] == ["ValueError('secret')"]
        site.bugs.clear()


async def do_nothing(scope, receive, send):
    pass


async def only_start(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def inject_a_header(scope, receive, send):
    await reply(send, b"", headers=[(b"x", b"a\r\nevil: yes")])


async def send_text(scope, receive, send):
    await reply(send, "text")


async def send_nonsense(scope, receive, send):
    await send({"type": "http.response.push"})


async def send_a_wrong_length(scope, receive, send):
    await reply(send, b"hello", headers=[(b"content-length", b"4")])


@pytest.mark.parametrize(
    ("app", "bug"),
    [
        (do_nothing, ApplicationError),
        (only_start, ApplicationError),
        (inject_a_header, ApplicationError),
        (send_nonsense, ApplicationError),
        (send_a_wrong_length, ApplicationError),
        (send_text, TypeError),
    ],
)
async def test_misbehaviour_before_anything_is_sent_is_a_500(autojump_clock, app, bug):
    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        answer = await client.answer()
        assert answer.status == 500
        assert b"evil" not in answer.headers
        await client.closed()
        assert [type(found) for found in site.bugs] == [bug]
        site.bugs.clear()


async def stop_midway(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"partial", "more_body": True})


async def crash_midway(scope, receive, send):
    await stop_midway(scope, receive, send)
    raise ValueError("secret")


async def fall_short(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"partial\r", "more_body": True})
    await send({"type": "http.response.body", "body": b"\n", "more_body": False})


@pytest.mark.parametrize("app", [stop_midway, crash_midway, fall_short])
async def test_failure_after_the_start_is_a_visible_cut(autojump_clock, app):
    async with Site(app) as site:
        client = site.connect()
        await client.send(GET + GET)
        await client.until(b"partial\r")
        assert await client.to_the_end() in {b"\n", b""}  # no last chunk, no second answer
        assert len(site.bugs) == 1
        site.bugs.clear()


async def test_crash_after_the_end_costs_the_client_nothing(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, b"ok")
        raise ValueError("late")

    async with Site(app) as site:
        client = site.connect()
        for _ in range(2):
            await client.send(GET)
            assert (await client.answer()).body == b"ok"
        await trio.testing.wait_all_tasks_blocked()
        assert [repr(bug) for bug in site.bugs] == ["ValueError('late')"] * 2
        site.bugs.clear()


async def test_every_bug_of_a_group_is_reported_by_itself(autojump_clock):
    async def app(scope, receive, send):
        raise ExceptionGroup("outer", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        assert (await client.answer()).status == 500
        assert [repr(bug) for bug in site.bugs] == ["ValueError('a')", "KeyError('b')"]
        site.bugs.clear()


async def test_sending_from_two_tasks_at_once_is_refused(autojump_clock):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(send, {"type": "http.response.body", "body": b"x", "more_body": True})

    async with Site(app) as site:
        ours, theirs = memory_stream_pair()
        theirs.send_stream.send_all_hook = trio.sleep_forever
        client = Client(ours)
        site.adopt(ours, theirs)
        await client.send(GET)
        await trio.sleep(1)
        assert [type(bug) for bug in site.bugs] == [ApplicationError]
        site.bugs.clear()


async def test_a_broken_reporter_does_not_take_the_server_along(autojump_clock, caplog):
    def on_bug(_):
        raise RuntimeError("broken reporter")

    async with Site(crash) as site:
        site.server._on_bug = on_bug
        client = site.connect()
        await client.send(GET)
        assert (await client.answer()).status == 500
    assert "broken reporter" in caplog.text
    assert "secret" in caplog.text


async def test_chunked_request_that_is_refused_as_a_whole(autojump_clock):
    async with Site(body_bytes_max=10) as site:
        client = site.connect()
        await client.send(chunked(b"x" * 11) + GET)
        assert (await client.answer()).status == 413
        await client.closed()
    assert site.outcomes == []
