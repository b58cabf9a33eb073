"""The same chain from the usual parts: hypercorn (trio), Starlette, stock httpx, pydantic models all the way.

What a careful team would write first: one shared client, typed models for every message, one derender call per chunk.

    python rival.py PORT UPSTREAM_PORT
"""

from __future__ import annotations

import sys
from typing import Any

import httpx
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from pydantic import BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class CompletionRequest(Open):
    model: str
    prompt: str | list[str]
    stream: bool = False
    max_tokens: int | None = None


class GenerateRequest(Open):
    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    stream: bool = False


class GenerateChoice(Open):
    index: int
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class GenerateChunk(Open):
    request_id: str
    choices: list[GenerateChoice]


class DerenderRequest(BaseModel):
    stream: bool = True
    generate_chunk: GenerateChunk
    stream_state: dict[str, Any] | None = None
    prompt_token_ids: list[int]
    completion_request: CompletionRequest


class CompletionChoice(Open):
    index: int
    text: str
    finish_reason: str | None = None


class CompletionChunk(Open):
    id: str
    choices: list[CompletionChoice]


class DerenderAnswer(BaseModel):
    chunk: CompletionChunk
    stream_state: dict[str, Any]


UPSTREAM = f"http://127.0.0.1:{sys.argv[2]}"
CLIENT = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))


async def completions(request):
    body = CompletionRequest.model_validate_json(await request.body())
    rendered = await CLIENT.post(f"{UPSTREAM}/v1/completions/render", json=body.model_dump())
    generate = GenerateRequest.model_validate(rendered.json()[0])
    generate.stream = True

    async def events():
        state = None
        async with CLIENT.stream("POST", f"{UPSTREAM}/inference/v1/generate", json=generate.model_dump()) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                ask = DerenderRequest(
                    generate_chunk=GenerateChunk.model_validate_json(line[6:]),
                    stream_state=state,
                    prompt_token_ids=generate.token_ids,
                    completion_request=body,
                )
                reply = await CLIENT.post(f"{UPSTREAM}/v1/completions/derender", json=ask.model_dump())
                answer = DerenderAnswer.model_validate_json(reply.content)
                state = answer.stream_state
                answer.chunk.id = generate.request_id
                yield f"data: {answer.chunk.model_dump_json()}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def main() -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    config.accesslog = config.errorlog = None
    await serve(Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])]), config)


if __name__ == "__main__":
    trio.run(main)
