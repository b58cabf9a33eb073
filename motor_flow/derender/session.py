"""What does Derender need to know of a request, and how little of it is sent with every chunk?

The sidecar keeps no session, so each call carries the request and the prompt. That part is constant: it is encoded once
per prompt, and a chunk's body is one concatenation. It is also kept small:

- messages are replaced by as many empty ones as matter (the number of earlier tool calls numbers the next one); `stop`
  is left out, the engine applies it; `stream_options` and transfer parameters mean nothing there;
- without a parser only the prompt's tail is read, to seed the detokenizer, and only on the first call.

The whole-answer call is made once and carries the request as it is.

Source: vLLM 0.33 renderers/online_derenderer.py (what is read), parser/utils.py (count_history_tool_calls).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from machines.tokens import SemanticIds, SemanticJson
from motor_flow.derender.client import CHAT_PATH, TEXT_PATH, DerenderClient
from motor_flow.derender.codec import ChatChoice, StreamAnswer, TextChoice
from motor_flow.errors import UNREADABLE, DerenderError

PROMPT_TAIL_TOKENS = 64  # the detokenizer looks back at most 7

_encode = msgspec.json.encode
_UNREAD = ("messages", "prompt", "stop", "stream_options", "stream", "documents")


class _ToolCalls(msgspec.Struct):
    tool_calls: list[Raw] | None = None


_messages = msgspec.json.Decoder(list[_ToolCalls]).decode
_EMPTY_MESSAGE: dict[str, Any] = {"role": "user", "content": ""}
_EMPTY_CALL: dict[str, Any] = {"id": "x", "type": "function", "function": {"name": "x", "arguments": "{}"}}


def slim_request(fields: dict[str, Raw], *, chat: bool) -> dict[str, object]:
    """The client's request without what streaming derender does not read."""
    slim: dict[str, object] = {key: value for key, value in fields.items() if key not in _UNREAD}
    if not chat:
        return {**slim, "prompt": "x"}
    messages = [_EMPTY_MESSAGE]
    calls = _history_calls(fields.get("messages"))
    if calls:
        messages.append({"role": "assistant", "tool_calls": [_EMPTY_CALL] * calls})
    return {**slim, "messages": messages}


def _history_calls(raw: Raw | None) -> int:
    if raw is None:
        return 0
    try:
        return sum(len(message.tool_calls or ()) for message in _messages(raw))
    except UNREADABLE:
        return 0


class ChunkDerenderer:
    """Streaming derender for the choices of one prompt.

    Args:
        client: where.
        chat: chat or completions.
        request: the slim request, encoded.
        model: as the client named it, or empty.
        ids: the original prompt, also after a relay.
        parser: a parser may be configured (None: unknown, so yes).

    """

    __slots__ = ("_chat", "_client", "_first", "_next")

    def __init__(
        self, client: DerenderClient, *, chat: bool, request: bytes, model: str, ids: SemanticIds, parser: bool | None
    ) -> None:
        self._client = client
        self._chat = chat
        named = b'"model":%b,' % _encode(model) if model else b""
        field = b'"chat_request"' if chat else b'"completion_request"'
        common = b'{"stream":true,%b"prompt_tokens":%d,%b:%b,' % (named, len(ids), field, request)
        if chat and parser is not False:
            self._first = self._next = b'%b"prompt_token_ids":%b,"generate_chunk":' % (common, _encode(ids))
        else:
            self._first = b'%b"prompt_token_ids":%b,"generate_chunk":' % (common, _encode(ids[-PROMPT_TAIL_TOKENS:]))
            self._next = b'%b"generate_chunk":' % common

    async def chat_chunk(self, event: SemanticJson, state: bytes | None) -> tuple[ChatChoice, bytes]:
        """Derender one engine event of one choice; returns its choice and the next state."""
        return _single(await self._client.chat_chunk(self._body(event, state)))

    async def text_chunk(self, event: SemanticJson, state: bytes | None) -> tuple[TextChoice, bytes]:
        """Derender one engine event of one choice; returns its choice and the next state."""
        return _single(await self._client.text_chunk(self._body(event, state)))

    def _body(self, event: SemanticJson, state: bytes | None) -> bytes:
        if state is None:
            return b"%b%b}" % (self._first, event)
        return b'%b%b,"stream_state":%b}' % (self._next, event, state)


def _single(answer: StreamAnswer[Any]) -> tuple[Any, bytes]:
    choices = answer.chunk.choices
    if len(choices) != 1:
        raise DerenderError(f"the sidecar answered {len(choices)} choices for a chunk of one")
    return choices[0], bytes(answer.stream_state)


async def derender_whole(
    client: DerenderClient,
    *,
    chat: bool,
    fields: dict[str, Raw],
    model: str,
    prompts: Sequence[SemanticIds],
    answers: Sequence[SemanticJson],
) -> bytes:
    """Derender whole engine answers, one for each prompt, in one call; returns the OpenAI response as it came.

    Args:
        client: where.
        chat: chat (one prompt) or completions (one or several).
        fields: the client's request.
        model: as the client named it, or empty.
        prompts: prompt ids, in order.
        answers: GenerateResponses, in the same order.

    """
    body: dict[str, object] = {"model": model} if model else {}
    if chat:
        body |= {
            "generate_response": Raw(answers[0]),
            "chat_request": fields,
            "prompt_tokens": len(prompts[0]),
            "prompt_token_ids": prompts[0],
        }
        return await client.whole(CHAT_PATH, _encode(body))
    body |= {
        "generate_responses": [Raw(answer) for answer in answers],
        "completion_request": fields,
        "prompt_tokens": [len(ids) for ids in prompts],
        "prompt_token_ids": prompts,
    }
    return await client.whole(TEXT_PATH, _encode(body))
