"""An inference engine that speaks vLLM 0.33's protocol, for tokens and for OpenAI bodies.

    POST /inference/v1/generate  /inference/v1/abort_requests        (with scale_out; else 403)
    POST /v1/chat/completions  /v1/completions  /v1/responses        (native)
    GET  /health /ping /version /v1/models /load /metrics /openapi.json     POST /tokenize /detokenize

The model behind it is the oracle: see oracle.py for what that makes visible. Tokens come by a clock (clock.py). When
the server cancels a call because its client has gone, the request is freed at once.

Source: vllm/entrypoints/scale_out/token_in_token_out/api_router.py, vllm/entrypoints/openai (0.33).
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio

from machines.topology import Role
from motor_flow.sim import generate, native_chat, native_completion
from motor_flow.sim.clock import Pace
from motor_flow.sim.exchange import App
from motor_flow.sim.facts import Facts
from motor_flow.sim.kv import Transfers
from motor_flow.sim.live import Live, LiveRequests
from motor_flow.sim.oracle import Oracle, tiny_oracle
from motor_flow.sim.permuted import Alphabet
from motor_flow.sim.prefix_cache import PrefixCache
from motor_flow.sim.protocol import GenerateRequest, read
from motor_flow.sim.recent import Recent
from motor_flow.sim.refusal import Refusal
from motor_flow.sim.render import base_id
from motor_flow.sim.requests import ChatCompletionRequest, CompletionRequest, check_cache_salt
from motor_flow.sim.responses import response
from motor_flow.sim.seen import CALLS_MAX, Seen, noted
from motor_flow.sim.served import CONTEXT_TOKENS_DEFAULT, Served

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from motor_flow.sim.exchange import Exchange
    from motor_flow.sim.sampling import Sampling

DISABLED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


class Engine(App):
    """An ASGI app.

    Attributes:
        transfers: how its KV gets to other engines and from them; None: not at all.

    Args:
        name: who it is, for those who watch several.
        role: what it is for; prefill and decode engines need `transfers` besides.
        model_name: the one name that requests may give.
        max_model_len: the context; must equal the sidecar's.
        parsers: whether native chats have reasoning and tool calls parsed.
        version: what `/version` says; the behaviour is always 0.33's.
        pace_s: the time between two tokens of a choice.
        first_token_s: the time before the first.
        chunk_tokens: tokens per event after a choice's first, which holds one.
        scale_out: whether there are token routes.
        tokens_only: no tokenizer: it refuses what would need one, and does not know the model's own end.
        choices_max: how many choices one token request may want (max_num_seqs).
        api_key: if given, what must be borne on guarded routes.
        cache_blocks: how many prompt blocks it caches; 0: none, and nothing is said of it in `usage`.
        permutation: if its weights are permuted, at each physical id the token it means; on token routes.
        prefill_s: the time to read one prompt token that is not cached; prompts are read one after another.

    """

    def __init__(
        self,
        *,
        name: str = "engine-1",
        role: Role = "union",
        model_name: str = "tiny",
        max_model_len: int = CONTEXT_TOKENS_DEFAULT,
        parsers: bool = True,
        version: str = "0.33.0",
        pace_s: float = 0.0,
        first_token_s: float = 0.0,
        chunk_tokens: int = 1,
        scale_out: bool = True,
        tokens_only: bool = False,
        choices_max: int = 256,
        api_key: str | None = None,
        cache_blocks: int = 0,
        prefill_s: float = 0.0,
        permutation: Sequence[int] | None = None,
    ) -> None:
        super().__init__(api_key=api_key)
        self.name = name
        self.role = role
        self.fingerprint = f"vllm-{version}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"
        self.served = Served(
            model_name=model_name, max_model_len=max_model_len, parsers=parsers, tokens_only=tokens_only
        )
        self.oracle: Oracle = tiny_oracle()
        self.pace_s = pace_s
        self.first_token_s = first_token_s
        self.chunk_tokens = chunk_tokens
        self.choices_max = choices_max
        self.cache = PrefixCache(cache_blocks) if cache_blocks else None
        self.prefill_s = prefill_s
        self._reads_until = 0.0
        self.transfers: Transfers | None = None
        self.alphabet = Alphabet(permutation) if permutation is not None else None
        self.seen: Recent[Seen] = Recent(CALLS_MAX)
        self.tokens_total = 0
        self._live = LiveRequests()
        self._calls = 0
        Facts(self, self.served, version)
        self.route("GET", "/load", self.load)
        self.route("GET", "/metrics", self.metrics)
        self.route("POST", "/inference/v1/generate", self.generate if scale_out else _disabled)
        self.route("POST", "/inference/v1/abort_requests", self.abort if scale_out else _disabled)
        if tokens_only:
            self.route("POST", "/abort_requests", self.abort)
        self.route("POST", "/v1/chat/completions", self.chat)
        self.route("POST", "/v1/completions", self.completion)
        self.route("POST", "/v1/responses", self.responses)

    @property
    def running(self) -> int:
        """Prompts that are being answered."""
        return len(self._live)

    @property
    def anomalies(self) -> list[str]:
        """Request ids that were in use twice at the same time."""
        return self._live.anomalies

    async def load(self, call: Exchange) -> None:
        await call.reply_json({"server_load": self._calls})

    async def metrics(self, call: Exchange) -> None:
        labels = f'{{engine="0",model_name="{self.served.model_name}"}}'
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {float(self.running)}",
            "# TYPE vllm:num_requests_waiting gauge",
            f"vllm:num_requests_waiting{labels} 0.0",
            "# TYPE vllm:kv_cache_usage_perc gauge",
            f"vllm:kv_cache_usage_perc{labels} 0.0",
            "# TYPE vllm:generation_tokens_total counter",
            f"vllm:generation_tokens_total{labels} {float(self.tokens_total)}",
            "",
        ]
        await call.reply("\n".join(lines).encode(), media_type="text/plain; version=1.0.0; charset=utf-8")

    async def abort(self, call: Exchange) -> None:
        body = await call.json(checked=False)
        ids = body.get("request_ids") if isinstance(body, dict) else None
        if ids is None:
            raise Refusal("Missing 'request_ids' in request body", kind="Bad Request")
        self._live.abort(ids)
        if self.transfers is not None:
            self.transfers.abort(ids)
        await call.reply()

    async def generate(self, call: Exchange) -> None:
        body = await call.json()
        if isinstance(body, dict):
            check_cache_salt(body.get("cache_salt"))
        request = read(GenerateRequest, body)
        if self.alphabet is not None:
            self.alphabet.understand(request)
            call.translated = self.alphabet.say
        header = call.headers.get("x-request-id")
        record = Seen(
            call.path, body, call.headers, "generate", id=f"generate-tokens-{base_id(header, request.request_id)}"
        )
        with self._work(call, record):
            served = self.served
            served.check_model(request.model)
            sampling = generate.sampling_of(served, request)
            generate.check_early(served, request, sampling, choices_max=self.choices_max)
            if request.stream:
                await call.open()
            try:
                rank = call.headers.get("x-data-parallel-rank")
                generate.check_late(served, request.token_ids, sampling, rank)
            except Refusal as refusal:
                if not request.stream:
                    raise
                await call.fail(refusal)
                return
            kv = request.kv_transfer_params or {}
            ids = request.token_ids
            if self.transfers is not None:
                ids = await self.transfers.fetch(kv, record.id, ids)
            live = self.start(ids, sampling, with_text=request.output_mode != "tokens")
            with self._live.running(record.id, live):
                if request.stream:
                    await generate.stream(served, request, live, record, call)
                else:
                    answer = await generate.answer(served, self.oracle, request, live, record)
                    if self.transfers is not None:
                        finish = answer["choices"][0]["finish_reason"]
                        answer["kv_transfer_params"] = await self.transfers.offer(
                            kv, record.id, request.token_ids, finish
                        )
                    await call.reply_json(answer)

    async def chat(self, call: Exchange) -> None:
        body = await call.json()
        request = read(ChatCompletionRequest, body)
        request_id = f"chatcmpl-{base_id(call.headers.get('x-request-id'), request.request_id)}"
        record = Seen(call.path, body, call.headers, "native", id=request_id)
        with self._work(call, record):
            if self.served.tokens_only:
                raise Refusal("", status=500)
            await native_chat.serve(self, request, record, call)

    async def completion(self, call: Exchange) -> None:
        body = await call.json()
        request = read(CompletionRequest, body)
        request_id = f"cmpl-{base_id(call.headers.get('x-request-id'), request.request_id)}"
        record = Seen(call.path, body, call.headers, "native", id=request_id)
        with self._work(call, record):
            prompt = request.prompt
            if isinstance(prompt, str) or (isinstance(prompt, list) and any(isinstance(one, str) for one in prompt)):
                self.served.check_tokenizer()
            await native_completion.serve(self, request, record, call)

    async def responses(self, call: Exchange) -> None:
        body = await call.json()
        record = Seen(call.path, body, call.headers, "native")
        with self._work(call, record):
            self.served.check_tokenizer()
            await call.reply_json(await response(self, body, record))

    def start(self, prompt: Sequence[int], sampling: Sampling, *, with_text: bool) -> Live:
        """Begin to answer a prompt, by this engine's clock."""
        cached = self.cache.take(prompt) if self.cache is not None else None
        return Live(
            self.served,
            self.oracle,
            prompt,
            sampling,
            pace=Pace(self.first_token_s + self._reading_s(len(prompt) - (cached or 0)), self.pace_s),
            interval=self.chunk_tokens,
            with_text=with_text,
            cached=cached,
        )

    def _reading_s(self, tokens: int) -> float:
        """How long it takes to read so many prompt tokens, behind the prompts that came before."""
        now = trio.current_time()
        self._reads_until = max(now, self._reads_until) + tokens * self.prefill_s
        return self._reads_until - now

    def known_as(self, request_id: str, live: Live) -> Any:
        """While the block runs, the prompt can be aborted by this name."""
        return self._live.running(request_id, live)

    @contextmanager
    def _work(self, call: Exchange, record: Seen) -> Iterator[None]:
        """Count a call, and note how it ended."""
        self.seen.add(record)
        self.meet(call, record)
        self._calls += 1
        try:
            with noted(record, call):
                yield
        finally:
            self._calls -= 1
            self.tokens_total += record.tokens


async def _disabled(_: Exchange) -> None:
    raise Refusal(DISABLED, status=403)
