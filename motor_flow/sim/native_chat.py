"""How does an engine answer a chat itself?

    ChatCompletionRequest ── Render's half ──▶ prompt ──▶ Live ──▶ parsers ──▶ message, or deltas

A stream begins with one chunk per choice that tells the role, once the first token is there. A token that shows
nothing sends nothing, unless its log-probabilities or its id were asked for. Reasoning is counted in the usage, which
Derender does not do.

Source: vllm/entrypoints/openai/chat_completion/serving.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from motor_flow.sim import logprobs, render, shapes
from motor_flow.sim.generate import check_late, prompt_logprobs, sent, usage_wanted
from motor_flow.sim.openai_events import OpenAIEvents
from motor_flow.sim.parsers import ChatStream, finish_reason, parse_whole, reasoning_tokens
from motor_flow.sim.refusal import Refusal
from motor_flow.sim.token_events import weight_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.decoding import Decoding
    from motor_flow.sim.engine import Engine
    from motor_flow.sim.exchange import Exchange
    from motor_flow.sim.live import Live
    from motor_flow.sim.oracle import Candidate
    from motor_flow.sim.parsers import Delta
    from motor_flow.sim.render import Prompt
    from motor_flow.sim.requests import ChatCompletionRequest
    from motor_flow.sim.seen import Seen

Plain = dict[str, Any]
_FIELDS = ("role", "content", "reasoning", "tool_calls")


async def serve(engine: Engine, request: ChatCompletionRequest, record: Seen, call: Exchange) -> None:
    engine.served.check_model(request.model)
    prompt = render.prompt_of_chat(engine.served, request)
    if request.stream:
        await call.open()
    try:
        check_late(engine.served, prompt.ids, prompt.sampling, call.headers.get("x-data-parallel-rank"))
    except Refusal as refusal:
        if not request.stream:
            raise
        await call.fail(refusal)
        return
    live = engine.start(prompt.ids, prompt.sampling, with_text=True)
    with engine.known_as(record.id, live):
        if request.stream:
            await _Stream(engine, request, prompt, live, record).run(call)
        else:
            await call.reply_json(await _answer(engine, request, prompt, live, record))


async def _answer(engine: Engine, request: ChatCompletionRequest, prompt: Prompt, live: Live, record: Seen) -> Plain:
    await live.complete()
    served, variables = engine.served, render.template_variables(request)
    hidden = served.parsers and not request.include_reasoning
    choices: list[Plain] = []
    thought = 0
    for choice in live.choices:
        ids, positions, text, finish = choice.take(len(choice.tokens))
        record.tokens += len(ids)
        thought += reasoning_tokens(served, ids, prompt.ids, variables)
        parts = parse_whole(served, request, variables, text, prompt.ids)
        if request.echo:
            parts["content"] = _echoed(request) + (parts["content"] or "")
        plain = shapes.chat_choice(
            choice.index,
            shapes.message(parts["content"], parts["reasoning"], parts["tool_calls"]) | {"role": _role(request)},
            logprobs=None if hidden else _logprobs(logprobs.LogprobStream(served.tokenizer), request, positions),
            finish=finish_reason(finish, request, tools=bool(parts["tool_calls"])),
            stop=choice.stop,
            ids=ids if request.return_token_ids and not hidden else None,
        )
        if request.return_weight_versions:
            plain["weight_versions"] = weight_versions(len(ids))
        choices.append(plain)
    return shapes.chat_answer(
        record.id,
        served.model_name,
        choices,
        shapes.usage(len(prompt.ids), record.tokens, reasoning=thought if served.parsers else None, cached=live.cached),
        fingerprint=engine.fingerprint,
        prompt_logprobs=prompt_logprobs(served, engine.oracle, prompt.ids, prompt.sampling.prompt_logprobs),
        prompt_token_ids=prompt.ids if request.return_token_ids else None,
        prompt_text=prompt.text if request.return_prompt_text else None,
    )


class _Stream:
    """One streamed chat: a parser and a log-probability context per choice."""

    def __init__(
        self, engine: Engine, request: ChatCompletionRequest, prompt: Prompt, live: Live, record: Seen
    ) -> None:
        served, variables = engine.served, render.template_variables(request)
        self._request = request
        self._prompt = prompt
        self._live = live
        self._record = record
        self._counts_thought = served.parsers
        self._with_usage, self._continuous = usage_wanted(request.stream_options)
        self._events = OpenAIEvents(
            record.id, "chat.completion.chunk", served.model_name, engine.fingerprint, with_usage=self._with_usage
        )
        self._parsers = [ChatStream(served, request, variables, prompt.ids) for _ in live.choices]
        self._texts = [logprobs.LogprobStream(served.tokenizer) for _ in live.choices]

    async def run(self, call: Exchange) -> None:
        begun = False
        while (count := await self._live.more()) is not None:
            if not begun:
                begun = True
                await self._begin(call)
            for choice in self._live.choices:
                if not choice.done and (event := self._event(choice, count)) is not None:
                    await call.event(event)
        if self._with_usage:
            thought = sum(parser.reasoning_tokens for parser in self._parsers) if self._counts_thought else None
            completion = sent(self._live.choices)
            usage = shapes.usage(len(self._prompt.ids), completion, reasoning=thought, cached=self._live.cached)
            await call.event(self._events.usage(usage))
        await call.close()

    async def _begin(self, call: Exchange) -> None:
        """Tell the role of every choice, and echo the last message if that is wanted."""
        request = self._request
        tail = {
            "prompt_token_ids": self._prompt.ids if request.return_token_ids else None,
            "prompt_text": self._prompt.text if request.return_prompt_text else None,
        }
        first: Delta = {"role": _role(request), "content": ""}
        echoed = _echoed(request) if request.echo else ""
        for delta, ending in ((first, tail), ({"content": echoed}, {"kv_transfer_params": None}))[: 2 if echoed else 1]:
            for choice in self._live.choices:
                plain: Plain = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
                usage = self._usage(choice.index)
                await call.event(self._events.chunk(plain, last=False, usage=usage, tail=ending))

    def _event(self, choice: Decoding, count: int) -> bytes | None:
        """What one choice's next tokens send, if anything."""
        request, parser = self._request, self._parsers[choice.index]
        ids, positions, text, ended = choice.take(count)
        if not (ids or text or ended):
            return None
        self._record.tokens += len(ids)
        delta, finish = parser.step(text, ids, ended)
        resolved = _logprobs(self._texts[choice.index], request, positions)
        if parser.hides_metadata:
            resolved = None
        wants_ids = bool(request.return_token_ids) and not parser.hides_metadata
        if delta is None and ended is None and resolved is None and not wants_ids:
            return None
        plain: Plain = {
            "index": choice.index,
            "delta": _ordered(delta),
            "logprobs": resolved,
            "finish_reason": finish,
            **({"stop_reason": choice.stop} if ended else {}),
            "token_ids": ids if wants_ids else None,
        }
        if ended:
            plain["weight_versions"] = weight_versions(choice.sent) if request.return_weight_versions else None
        usage, tail = self._usage(choice.index), {"kv_transfer_params": None}
        return self._events.chunk(plain, last=ended is not None, usage=usage, tail=tail)

    def _usage(self, index: int) -> Plain | None:
        if not self._continuous:
            return None
        parser = self._parsers[index]
        thought = parser.reasoning_tokens if self._counts_thought else None
        return shapes.without_nulls(shapes.usage(len(self._prompt.ids), parser.tokens, reasoning=thought))


def _role(request: ChatCompletionRequest) -> str:
    return "assistant" if request.add_generation_prompt else request.messages[-1].role


def _echoed(request: ChatCompletionRequest) -> str:
    """The last message's text, if the answer goes on with it."""
    last = request.messages[-1]
    return last.content if last.role == _role(request) and isinstance(last.content, str) else ""


def _logprobs(
    stream: logprobs.LogprobStream, request: ChatCompletionRequest, positions: Sequence[Sequence[Candidate]]
) -> Plain | None:
    if not request.logprobs:
        return None
    limit = logprobs.chat_limit(request.top_logprobs, every=bool(request.logprob_token_ids))
    return stream.chat([logprobs.position(candidates) for candidates in positions], limit)


def _ordered(delta: Delta | None) -> Delta:
    """The keys that were set, in order; an empty list of calls is no key."""
    given = delta or {}
    return {key: given[key] for key in _FIELDS if key in given and (key != "tool_calls" or given[key])}
