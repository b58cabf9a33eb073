"""How does one choice go on, and when is it over?

    token ──▶ end token? stop token? ──▶ text, if anybody needs it ──▶ stop string? ──▶ length?

The token that ends it, and every token of a stop string, stay among the token ids; the text ends before them unless
they are to be included. The primary end token has no stop reason, any other stop token is its own, a stop string is
itself. Until `min_tokens` the tokens that would end the choice cannot be drawn, and no stop string counts.

Decoding runs ahead of what has been sent: `sent` tokens have left, and `text_until` says which text goes with them,
less what is held back while it may still become a stop string.

Source: vllm/v1/core/sched/utils.py, vllm/v1/engine/detokenizer.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motor_flow.sim.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.oracle import Candidate, Oracle
    from motor_flow.sim.sampling import Sampling
    from motor_flow.sim.served import Served

NONE: frozenset[int] = frozenset()


class Decoding:
    """One choice of one prompt."""

    def __init__(
        self, served: Served, oracle: Oracle, prompt: Sequence[int], sampling: Sampling, *, index: int, with_text: bool
    ) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.logprobs: list[list[Candidate]] = []
        self.text = ""
        self.finish: str | None = None
        self.stop: int | str | None = None
        self.sent = 0
        self.done = False
        """Whether the finish, too, has been sent."""
        self._sampling = sampling
        self._chain = oracle.start(prompt, index)
        self._room = min(
            served.max_model_len - len(prompt),
            sampling.max_tokens if sampling.max_tokens is not None else served.max_model_len,
        )
        ends = served.tokenizer.eos_ids
        self._primary = None if sampling.ignore_eos or served.tokens_only else served.tokenizer.eos_id
        self._stops = frozenset(sampling.stop_token_ids) | (NONE if sampling.ignore_eos else ends)
        self._never = ends if sampling.ignore_eos else NONE
        self._early = self._never | ends | frozenset(sampling.stop_token_ids)
        self._logprobs = sampling.logprobs
        self._window: Detokenizer | None = None
        if with_text or sampling.stop:
            self._window = Detokenizer.after_prompt(served.tokenizer, prompt, skip_special=sampling.skip_special_tokens)
        self._ends: list[int] = []
        self._shown = 0

    def decode(self, count: int) -> None:
        """Have at least so many tokens, or all there are."""
        while self.finish is None and len(self.tokens) < count:
            self._step()

    def abort(self, count: int) -> None:
        """End after so many tokens, whatever has been decoded ahead, unless it ended before."""
        if self.finish is not None and len(self.tokens) <= count:
            return
        count = max(min(count, len(self.tokens)), self.sent)
        del self.tokens[count:], self.logprobs[count:], self._ends[count:]
        if self._window is not None:
            self.text = self.text[: self._ends[-1]] if self._ends else ""
        self.finish, self.stop = "abort", None

    def take(self, count: int) -> tuple[list[int], list[list[Candidate]], str, str | None]:
        """(tokens, log-probabilities, text, finish) of what follows the last take, up to so many tokens in all."""
        end = min(count, len(self.tokens))
        start, self.sent = self.sent, max(end, self.sent)
        finish = self.finish if end >= len(self.tokens) else None
        self.done = finish is not None
        text = ""
        if self._window is not None:
            until = len(self.text)
            if finish is None:
                until = (self._ends[end - 1] if end else 0) - self._sampling.held_back_chars
            if until > self._shown:
                text, self._shown = self.text[self._shown : until], until
        return self.tokens[start:end], self.logprobs[start:end], text, finish

    def _step(self) -> None:
        sampling, count = self._sampling, len(self.tokens) + 1
        token = self._chain.next(self._early if count <= sampling.min_tokens else self._never)
        self.tokens.append(token)
        if self._logprobs is not None:
            self.logprobs.append(self._chain.candidates(self._logprobs))
        stopped = token in self._stops
        if stopped:
            self.finish, self.stop = "stop", None if token == self._primary else token
        elif count >= self._room:
            self.finish = "length"
        if self._window is not None:
            self._read(token, stopped=stopped)

    def _read(self, token: int, *, stopped: bool) -> None:
        sampling, window = self._sampling, self._window
        assert window is not None
        if not stopped or sampling.include_stop_str_in_output:
            before = len(self.text)
            self.text += window.feed([token])
            if sampling.stop and len(self.tokens) > sampling.min_tokens:
                self._find_stop(before)
        self._ends.append(len(self.text))

    def _find_stop(self, before: int) -> None:
        """Look for a stop string that ends in the new text; the one that is complete first wins."""
        hits = [
            (at + len(stop), at, stop)
            for stop in self._sampling.stop
            if (at := self.text.find(stop, max(before + 1 - len(stop), 0))) >= 0
        ]
        if not hits or before == len(self.text):
            return
        end, at, found = min(hits, key=lambda hit: hit[0])
        self.finish, self.stop = "stop", found
        self.text = self.text[: end if self._sampling.include_stop_str_in_output else at]
