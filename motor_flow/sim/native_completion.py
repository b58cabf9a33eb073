"""How does an engine answer a completion itself?

    CompletionRequest ── Render's half ──▶ prompt, prompt, … ──▶ Live, Live, … ──▶ one answer or one stream

The choices of all prompts are numbered through: prompt 1 has 0 … n-1, prompt 2 has n … 2n-1. Unlike a chat, every
engine chunk is sent, with or without text. `echo` puts the prompt before the output, in text and in
log-probabilities; with `max_tokens` 0 it is all there is, although one token is generated and counted.

Source: vllm/entrypoints/openai/completion/serving.py (0.33).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from motor_flow.sim import logprobs, render, shapes
from motor_flow.sim.generate import check_late, prompt_logprobs, sent, usage_wanted
from motor_flow.sim.openai_events import OpenAIEvents
from motor_flow.sim.refusal import Refusal
from motor_flow.sim.token_events import weight_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.decoding import Decoding
    from motor_flow.sim.engine import Engine
    from motor_flow.sim.exchange import Exchange
    from motor_flow.sim.live import Live
    from motor_flow.sim.oracle import Candidate
    from motor_flow.sim.render import Prompt
    from motor_flow.sim.requests import CompletionRequest
    from motor_flow.sim.seen import Seen

Plain = dict[str, Any]


async def serve(engine: Engine, request: CompletionRequest, record: Seen, call: Exchange) -> None:
    served = engine.served
    served.check_model(request.model)
    prompts = render.prompts_of_completion(served, request)
    if request.stream:
        await call.open()
    try:
        for prompt in prompts:
            check_late(served, prompt.ids, prompt.sampling, call.headers.get("x-data-parallel-rank"))
    except Refusal as refusal:
        if not request.stream:
            raise
        await call.fail(refusal)
        return
    lives = [engine.start(prompt.ids, prompt.sampling, with_text=not served.tokens_only) for prompt in prompts]
    with ExitStack() as stack:
        for index, live in enumerate(lives):
            stack.enter_context(engine.known_as(f"{record.id}-{index}", live))
        work = _Work(engine, request, prompts, lives, record)
        if request.stream:
            await work.stream(call)
        else:
            await call.reply_json(await work.answer())


class _Work:
    """One completion request: its prompts, and what becomes of each."""

    def __init__(
        self,
        engine: Engine,
        request: CompletionRequest,
        prompts: Sequence[Prompt],
        lives: Sequence[Live],
        record: Seen,
    ) -> None:
        self.engine = engine
        self.request = request
        self.prompts = prompts
        self.lives = lives
        self.record = record
        count = len(prompts) * request.n
        self._texts = [logprobs.LogprobStream(engine.served.tokenizer) for _ in range(count)]
        self._introduced = [False] * count

    async def answer(self) -> Plain:
        choices: list[Plain] = []
        for prompt, live in zip(self.prompts, self.lives, strict=True):
            await live.complete()
            given = prompt_logprobs(self.engine.served, self.engine.oracle, prompt.ids, prompt.sampling.prompt_logprobs)
            for choice in live.choices:
                ids, positions, text, finish = choice.take(len(choice.tokens))
                self.record.tokens += len(ids)
                text, resolved, _ = self._shown(len(choices), prompt, ids, positions, text)
                plain = shapes.completion_choice(
                    len(choices),
                    text,
                    logprobs=resolved,
                    finish=finish,
                    stop=choice.stop,
                    ids=ids if self.request.return_token_ids else None,
                    prompt_ids=prompt.ids if self.request.return_token_ids else None,
                )
                plain["prompt_logprobs"] = given
                if self.request.return_weight_versions:
                    plain["weight_versions"] = weight_versions(len(ids))
                choices.append(plain)
        return shapes.completion_answer(
            self.record.id,
            self.engine.served.model_name,
            choices,
            shapes.usage(self._prompt_tokens, self.record.tokens, cached=self.lives[-1].cached),
            fingerprint=self.engine.fingerprint,
        )

    async def stream(self, call: Exchange) -> None:
        include, continuous = usage_wanted(self.request.stream_options)
        events = OpenAIEvents(
            self.record.id,
            "text_completion",
            self.engine.served.model_name,
            self.engine.fingerprint,
            with_usage=include,
        )
        open_ = list(enumerate(self.lives))
        while open_:
            for number, live in tuple(open_):
                count = await live.more()
                if count is None:
                    open_.remove((number, live))
                    continue
                for choice in live.choices:
                    if not choice.done and (plain := self._chunk(number, choice, count)) is not None:
                        await call.event(
                            events.chunk(
                                plain,
                                last=choice.done,
                                usage=self._usage(number, choice) if continuous else None,
                                tail={"kv_transfer_params": None},
                            )
                        )
        if include:
            completion = sum(sent(live.choices) for live in self.lives)
            usage = shapes.usage(self._prompt_tokens, completion, cached=self.lives[0].cached)
            await call.event(events.usage(usage))
        await call.close()

    def _chunk(self, number: int, choice: Decoding, count: int) -> Plain | None:
        request, prompt = self.request, self.prompts[number]
        index = number * request.n + choice.index
        ids, positions, text, finish = choice.take(count)
        if not (ids or text or finish):
            return None
        self.record.tokens += len(ids)
        text, resolved, prompt_ids = self._shown(index, prompt, ids, positions, text)
        versions = weight_versions(choice.sent) if request.return_weight_versions and finish else None
        return {
            "index": index,
            "text": text,
            "logprobs": resolved,
            "finish_reason": finish,
            "stop_reason": choice.stop if finish is not None else None,
            "prompt_token_ids": prompt_ids,
            "token_ids": ids if request.return_token_ids else None,
            "weight_versions": versions,
        }

    def _shown(
        self, index: int, prompt: Prompt, ids: list[int], positions: Sequence[Sequence[Candidate]], text: str
    ) -> tuple[str, Plain | None, list[int] | None]:
        """(text, log-probabilities, prompt ids) of a piece of output, an echoed prompt before the first."""
        request, served = self.request, self.engine.served
        first, self._introduced[index] = not self._introduced[index], True
        shown: list[logprobs.Position | None] = [logprobs.position(candidates) for candidates in positions]
        if first and request.echo:
            before = "" if request.return_token_ids else prompt.text or served.tokenizer.decode(prompt.ids)
            only = request.max_tokens == 0
            text = before if only else before + text
            ids = list(prompt.ids) if only else prompt.ids + ids
            shown = self._echoed(prompt) + ([] if only else shown)
        resolved = None
        if request.logprobs is not None:
            limit = logprobs.completion_limit(request.logprobs, every=bool(request.logprob_token_ids))
            resolved = self._texts[index].completion(shown, limit, ids)
        wanted = first and (bool(request.return_token_ids) or bool(request.echo))
        return text, resolved, prompt.ids if wanted else None

    def _echoed(self, prompt: Prompt) -> list[logprobs.Position | None]:
        count = prompt.sampling.prompt_logprobs
        if count is None:
            return []
        chain = self.engine.oracle.start(prompt.ids[:1])
        positions: list[logprobs.Position | None] = [None]
        for token in prompt.ids[1:]:
            chain.force(token)
            positions.append(logprobs.position(chain.candidates(count)))
        return positions

    def _usage(self, number: int, choice: Decoding) -> Plain:
        return shapes.without_nulls(shapes.usage(len(self.prompts[number].ids), choice.sent))

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)
