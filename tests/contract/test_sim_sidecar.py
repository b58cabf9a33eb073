"""What the simulated sidecar has beyond the protocol: it sees the mistakes of its client, and what it was asked."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from motor_flow.sim.sidecar import Sidecar
from motor_flow.sim.witness import Witness
from tests.contract.asking import (
    COMPLETION_DERENDER,
    COMPLETION_RENDER,
    DERENDER,
    HELLO,
    RENDER,
    STORY,
    chunk_request,
    derendered_stream,
    generate_chunk,
    streamed_text,
    tokens_of,
)
from tests.contract.sim_client import Client

ANSWER = "<think>\nA thought.\n</think>\n\nAn answer 你好."


class Stream:
    """A well-behaved client's stream of one-token chunks, up to its end."""

    def __init__(self, client: Client, prompt: list[int], body: Any = HELLO) -> None:
        self.client, self.prompt, self.body = client, prompt, body
        self.state: Any = None
        self.text = ""

    async def feed(self, *tokens: int, finish: str | None = None) -> Any:
        for token in tokens:
            request = chunk_request(self.body, self.prompt, [token], self.state, finish)
            answer = await self.client.ask(DERENDER, request)
            self.state = answer["stream_state"]
            self.text += answer["chunk"]["choices"][0]["delta"].get("content") or ""
        return self.state


async def begin(sidecar: Sidecar, body: Any = HELLO) -> tuple[Stream, list[int]]:
    client = Client(sidecar)
    rendered = await client.ask(RENDER, body)
    return Stream(client, rendered["token_ids"], body), await tokens_of(client.call, ANSWER)


async def test_a_good_client_is_not_accused() -> None:
    sidecar = Sidecar()
    stream, tokens = await begin(sidecar)
    await stream.feed(*tokens)
    await stream.feed(2, finish="stop")
    body = chunk_request(HELLO, stream.prompt, [], stream.state, None)
    body["generate_chunk"] |= {"choices": [], "usage": {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}}
    await stream.client.ask(DERENDER, body)
    assert stream.text == "\n\nAn answer 你好."
    assert (sidecar.anomalies, sidecar.repeats) == ([], [])


@pytest.mark.parametrize(
    "change",
    [
        {"output_token_ids": [640, 640]},
        {"role_sent": False},
        {"output_chunk_lens": [2]},
        {"tools_streamed": True},
        {"prev_tokens": []},
        {"last_tool_call_ids": ["chatcmpl-tool-1"]},
    ],
)
async def test_an_altered_state(change: dict[str, Any]) -> None:
    sidecar = Sidecar()
    stream, tokens = await begin(sidecar)
    await stream.feed(*tokens[:2])
    stream.state |= change
    await stream.client.call("POST", DERENDER, chunk_request(HELLO, stream.prompt, tokens[2:3], stream.state, None))
    (anomaly,) = sidecar.anomalies
    assert "the state was altered" in anomaly or "a state that no sidecar made" in anomaly


async def test_a_lost_chunk_changes_the_text() -> None:
    """There is no session on the server that would make up for a client's mistake."""
    stream, tokens = await begin(Sidecar())
    await stream.feed(*tokens[:-4], *tokens[-3:])
    assert stream.text != "\n\nAn answer 你好."


async def test_a_foreign_state_gives_foreign_text() -> None:
    """The same tokens are an answer or a thought, as the state has it."""
    stream, tokens = await begin(Sidecar())
    thinking = Stream(stream.client, stream.prompt)
    await thinking.feed(*await tokens_of(stream.client.call, "<think>\nHm"))
    await stream.feed(*tokens)
    more = await tokens_of(stream.client.call, " More.")
    own, before = stream.state, stream.text
    await stream.feed(*more)
    assert stream.text == f"{before} More."
    stream.state, stream.text = thinking.state, before
    await stream.feed(*more)
    assert stream.text == before
    assert own != thinking.state


async def test_tokens_after_the_finish() -> None:
    sidecar = Sidecar()
    stream, tokens = await begin(sidecar)
    await stream.feed(*tokens[:3])
    await stream.feed(2, finish="stop")
    await stream.feed(tokens[3])
    (anomaly,) = sidecar.anomalies
    assert "tokens after the finish" in anomaly


async def test_a_prompt_that_render_never_returned() -> None:
    sidecar = Sidecar()
    stream, tokens = await begin(sidecar)
    stream.prompt = stream.prompt[:-1]
    await stream.feed(tokens[0])
    (anomaly,) = sidecar.anomalies
    assert "a prompt that Render never returned" in anomaly


async def test_the_same_call_twice() -> None:
    """Right after a failure, so no anomaly; and the answer is the same."""
    sidecar = Sidecar()
    stream, tokens = await begin(sidecar)
    await stream.feed(*tokens[:3])
    body = chunk_request(HELLO, stream.prompt, tokens[3:4], stream.state, None)
    first = await stream.client.ask(DERENDER, body)
    assert sidecar.repeats == []
    second = await stream.client.ask(DERENDER, body)
    assert len(sidecar.repeats) == 1
    assert sidecar.anomalies == []
    assert first["stream_state"] == second["stream_state"]
    assert first["chunk"]["choices"] == second["chunk"]["choices"]


async def test_sidecars_that_share_a_witness() -> None:
    """Any of them may take any call of a stream; what was rendered by one is known to all."""
    witness = Witness()
    sidecars = [Sidecar(witness=witness) for _ in range(3)]
    stream, tokens = await begin(sidecars[0])
    for index, token in enumerate(tokens):
        stream.client = Client(sidecars[index % 3])
        await stream.feed(token)
    assert stream.text == "\n\nAn answer 你好."
    assert sidecars[0].anomalies == sidecars[2].anomalies == []
    await Client(sidecars[1]).ask(DERENDER, chunk_request(HELLO, stream.prompt, tokens[:1], None, None))
    assert len(sidecars[2].repeats) == 1


async def test_without_parsers_all_text_is_content() -> None:
    client = Client(Sidecar(parsers=False))
    rendered = await client.ask(RENDER, HELLO)
    tokens = await tokens_of(client.call, ANSWER)
    chunks = await derendered_stream(client.call, HELLO, rendered["token_ids"], [[token] for token in tokens])
    assert streamed_text(chunks, "content") == ANSWER
    assert streamed_text(chunks, "reasoning") == ""


async def test_a_stream_of_text_is_watched_too() -> None:
    sidecar = Sidecar()
    client = Client(sidecar)
    (rendered,) = await client.ask(COMPLETION_RENDER, STORY)

    def body(tokens: list[int], state: Any) -> dict[str, Any]:
        return {
            "stream": True,
            "generate_chunk": generate_chunk(tokens, None),
            "stream_state": state,
            "prompt_token_ids": rendered["token_ids"],
            "completion_request": STORY,
        }

    state = (await client.ask(COMPLETION_DERENDER, body([163, 124], None)))["stream_state"]
    await client.ask(COMPLETION_DERENDER, body([257], state))
    assert sidecar.anomalies == []
    lost = state | {"prev_tokens": state["prev_tokens"][:-1]}
    await client.ask(COMPLETION_DERENDER, body([257], lost))
    (anomaly,) = sidecar.anomalies
    assert "the state was altered" in anomaly


async def test_what_it_has_seen() -> None:
    sidecar = Sidecar()
    client = Client(sidecar)
    await client.call("POST", RENDER, HELLO, {"X-Request-Id": "one"})
    await client.call("POST", RENDER, HELLO | {"model": "nope"})
    first, second = sidecar.seen
    assert (first.path, first.kind, first.status, first.finished) == (RENDER, "render", 200, True)
    assert first.body == HELLO
    assert first.headers["x-request-id"] == "one"
    assert second.status == 404
    assert not first.peer_closed


async def test_it_takes_its_time(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    sidecar = Sidecar(render_s=2.0, derender_s=0.5)
    client = Client(sidecar)
    started = trio.current_time()
    rendered = await client.ask(RENDER, HELLO)
    assert trio.current_time() - started == pytest.approx(2.0)
    await client.ask(DERENDER, chunk_request(HELLO, rendered["token_ids"], [640], None, None))
    assert trio.current_time() - started == pytest.approx(2.5)
    call = client.start(nursery, RENDER, HELLO)
    await trio.sleep(1.0)
    await call.leave()
    assert sidecar.seen[-1].peer_closed
    assert not sidecar.seen[-1].finished


async def test_a_key() -> None:
    client = Client(Sidecar(api_key="secret"))
    for headers in (None, {"Authorization": "Bearer wrong"}):
        assert (await client.call("POST", RENDER, HELLO, headers))[::2] == (401, {"error": "Unauthorized"})
    assert (await client.call("POST", RENDER, HELLO, {"Authorization": "Bearer secret"}))[0] == 200
    assert (await client.call("GET", "/health"))[0] == 200


async def test_routes_are_listed() -> None:
    _, _, said = await Client(Sidecar()).call("GET", "/openapi.json")
    assert {RENDER, DERENDER, COMPLETION_RENDER, COMPLETION_DERENDER, "/health", "/version"} <= set(said["paths"])
    assert "/inference/v1/generate" not in said["paths"]


async def test_another_name_and_context() -> None:
    client = Client(Sidecar(model_name="large", max_model_len=64))
    rendered = await client.ask(RENDER, HELLO | {"model": "large"})
    assert rendered["model"] == "large"
    assert rendered["sampling_params"]["max_tokens"] == 64 - len(rendered["token_ids"])
    status, _, said = await client.call("POST", RENDER, HELLO)
    assert (status, said["error"]["param"]) == (404, "model")
