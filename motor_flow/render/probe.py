"""What can a sidecar do, found out by asking it?

At the start and before ready only: version, one render, and one streaming derender of its first token id. The
derender is sent without the request and the prompt ids, which a sidecar with a parser refuses with 400: that tells
whether one is configured; its streaming is then tried with both, and a few ids are derendered to learn which token ends
reasoning. Later probes are GETs.

Source: contract section 7 (Probe); vLLM 0.33 scale_out/derender/serving.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from machines.faults import Fault
from machines.tokens import Thought
from motor_flow.errors import UNREADABLE
from motor_flow.net.asking import ask_version
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Reply, TransportFault
from motor_flow.net.verdict import judge
from motor_flow.render.capability import Capability, by_version
from motor_flow.render.markers import MARKERS

PROBE_TIMEOUT_S = 5.0
REASONING_STARTS = {
    "</think>": "<think>",
    "[/THINK]": "[THINK]",
    "</seed:think>": "<seed:think>",
    "<|END_THINKING|>": "<|START_THINKING|>",
}
CALL_BEGINS = (
    *("<tool_call>", "[TOOL_CALLS]", "<|tool_calls_section_begin|>", "<｜tool▁calls▁begin｜>"),
    "<|START_ACTION|>",
)
THINKING = {"enable_thinking": True, "thinking": True}  # what templates call it
WORD = "x"
_encode = msgspec.json.encode


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Message(msgspec.Struct):
    reasoning: str | None = None
    reasoning_content: str | None = None
    content: str | None = None

    @property
    def thought(self) -> str | None:
        return self.reasoning or self.reasoning_content


class _Choice(msgspec.Struct):
    message: _Message


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class _Rendered(msgspec.Struct):
    token_ids: list[int]


class Unclear(Exception):
    """The sidecar is there, but could not be asked for everything just now.

    Attributes:
        guess: by its version.

    """

    def __init__(self, reason: str, guess: Capability) -> None:
        super().__init__(reason)
        self.guess = guess


async def probe_sidecar(http: HttpClient, url: str) -> Capability:
    """What the sidecar at this address can do.

    Raises:
        TransportFault: nobody answers.
        Unclear: it cannot say now.

    """
    version = await ask_version(http, url)
    try:
        rendered = await _post(
            http, f"{url}/v1/chat/completions/render", {"messages": [{"role": "user", "content": "x"}]}
        )
        if rendered.status != 200:
            missing = f"render of a probe answered HTTP {rendered.status}"
            return replace(by_version(version, parser=None), renders=False, missing=(missing,))
        ids = msgspec.json.decode(rendered.body, type=_Rendered).token_ids
        capability = await _probe_stream(http, url, version, ids)
        if not capability.parser:
            return capability
        markers = await _single_tokens(http, url, MARKERS)
        if markers is not None:
            thought = await _probe_thought(http, url, ids, markers) if capability.derenders else None
            return replace(
                capability, markers=frozenset(markers.values()), marker_texts=frozenset(markers), thought=thought
            )
        missing = "/tokenize is not offered, so chat chunks are derendered one by one"
        return replace(capability, missing=(*capability.missing, missing))
    except (TransportFault, _NotNow, *UNREADABLE) as exc:
        raise Unclear(f"the probe failed: {exc}", by_version(version, parser=None)) from exc


class _NotNow(Exception):
    """An answer that says nothing about what the sidecar can do."""


async def _probe_stream(http: HttpClient, url: str, version: str, ids: list[int]) -> Capability:
    chunk = {"request_id": "probe", "choices": [{"index": 0, "token_ids": ids[:1], "finish_reason": None}]}
    body: dict[str, object] = {"stream": True, "generate_chunk": chunk}
    path = f"{url}/v1/chat/completions/derender"
    bare = await _post(http, path, body)
    parser = bare.status != 200
    if parser:
        request = {"messages": [{"role": "user", "content": "x"}]}
        full = await _post(http, path, body | {"chat_request": request, "prompt_token_ids": ids})
    else:
        full = bare
    capability = by_version(version, parser=parser)
    if full.status == 200:
        return capability
    missing = f"streaming chat derender answered HTTP {full.status} to a probe: such requests go native"
    return replace(capability, streams_chat=False, missing=(*capability.missing, missing))


async def _probe_thought(http: HttpClient, url: str, ids: list[int], markers: dict[str, int]) -> Thought | None:
    """Which markers end reasoning for this sidecar's parser: only what stands before them is derendered as such."""
    word = (await _single_tokens(http, url, (WORD,)) or {}).get(WORD)
    if word is None:
        return None

    async def ending(candidates: Iterable[str]) -> list[str]:
        known = [marker for marker in candidates if marker in markers]
        answers = {marker: await _message(http, url, ids, [word, markers[marker], word]) for marker in known}
        return [marker for marker, message in answers.items() if message.thought == WORD]

    ends = await ending(REASONING_STARTS)
    if not ends:
        return None
    calls = await ending(CALL_BEGINS)
    end, start = markers[ends[0]], markers.get(REASONING_STARTS[ends[0]])
    # A parser that splits the text at its first marker leaves a second one in it, and counts between the two.
    answer = await _message(http, url, ids, [word, end, word, end, word])
    splits = ends[0] in (answer.content or "")
    every = frozenset(markers.values())
    return Thought(end, frozenset(markers[each] for each in ends + calls), every, start if splits else None)


async def _message(http: HttpClient, url: str, prompt: list[int], tokens: list[int]) -> _Message:
    """What becomes of an answer of these tokens."""
    choice = {"index": 0, "token_ids": tokens, "finish_reason": "length"}
    body = {
        "generate_response": {"request_id": "probe", "choices": [choice]},
        "chat_request": {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": THINKING},
        "prompt_token_ids": prompt,
        "prompt_tokens": len(prompt),
    }
    reply = await _post(http, f"{url}/v1/chat/completions/derender", body)
    if reply.status != 200:
        return _Message()
    return msgspec.json.decode(reply.body, type=_Answer).choices[0].message


async def _single_tokens(http: HttpClient, url: str, texts: Iterable[str]) -> dict[str, int] | None:
    """Which of these are one token in this vocabulary; None: this sidecar tokenizes for nobody."""
    found = {}
    for text in texts:
        reply = await _post(http, f"{url}/tokenize", {"prompt": text, "add_special_tokens": False})
        if reply.status != 200:
            return None
        tokens = msgspec.json.decode(reply.body, type=_Tokens).tokens
        if len(tokens) == 1:
            found[text] = tokens[0]
    return found


async def _post(http: HttpClient, url: str, body: object) -> Reply:
    reply = await http.call("POST", url, body=_encode(body), timeout_s=PROBE_TIMEOUT_S)
    if judge(reply.status, reply.body) in (Fault.FAILED, Fault.BUSY):
        raise _NotNow(f"{url} answered HTTP {reply.status}")
    return reply
