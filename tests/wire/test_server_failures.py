"""An application that fails: a 500 without detail, or a visible cut; and whoever is told of bugs is told."""

from __future__ import annotations

import pytest
import trio
from trio.testing import memory_stream_pair

from motor_flow.edge.asgi import ApplicationError
from tests.wire.server_client import GET, Client, Site, check_error, reply


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
        check_error(answer, 500)
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


async def test_bugs_are_logged_when_nobody_else_is_told(autojump_clock, caplog):
    async with Site(crash) as site:
        site.server._on_bug = None
        client = site.connect()
        await client.send(GET)
        assert (await client.answer()).status == 500
    assert "ValueError: secret" in caplog.text


async def test_a_bug_of_the_server_ends_one_connection(autojump_clock, monkeypatch):
    async with Site() as site:
        other, client = site.connect(), site.connect()
        await other.send(GET)
        await other.answer()
        with monkeypatch.context() as broken:
            broken.setattr("motor_flow.edge.connection.Exchange", None)
            await client.send(GET)
            await client.closed()
        assert [type(bug) for bug in site.bugs] == [ExceptionGroup]
        site.bugs.clear()
        await other.send(GET)
        assert (await other.answer()).status == 200


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
