"""How is a request to be continued?

One `Sampling` per request: made by Render from an OpenAI body, or by an engine from a token body. Two kinds of
checks, as in vLLM: those of the parameters among themselves run at once (`__post_init__`); those that need the model
(`check_model`) run when the request reaches the engine, which for a stream is after the head has gone out.

`dump` is Render's half. It leaves defaults out, and so does vLLM's for whatever it can compare by identity:
`max_tokens` 16 is lost, while floats are always written. A client has to put the 16 back.

Temperature, seed, penalties, biases and grammars are checked and carried, but the simulated model does not read them.

Source: vllm/sampling_params.py (0.33).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from motor_flow.sim.refusal import Refusal, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from motor_flow.sim.served import Served

CHOICES_MAX = 16384
GREEDY_BELOW = 1e-5
TEMPERATURE_MIN = 1e-2
MAX_TOKENS_DEFAULT = 16

_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(slots=True, kw_only=True)
class Sampling:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    max_tokens: int | None = MAX_TOKENS_DEFAULT
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    stream_interval: int | None = None
    structured_outputs: dict[str, Any] | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] = field(default_factory=list)
    thinking_token_budget: int | None = None

    def __post_init__(self) -> None:
        if 0 < self.temperature < TEMPERATURE_MIN:
            self.temperature = TEMPERATURE_MIN
        if self.seed == -1:
            self.seed = None
        self.stop_token_ids = list(dict.fromkeys(self.stop_token_ids))
        self.bad_words = list(dict.fromkeys(self.bad_words))
        self._check_counts()
        self._check_floats()
        self._check_stops()
        if self.greedy and self.n > 1:
            raise invalid(f"n must be 1 when using greedy sampling, got {self.n}.")
        if self.structured_outputs is not None:
            self.structured_outputs = _structured(self.structured_outputs)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def held_back_chars(self) -> int:
        """How much text a stream keeps back, because it may turn out to be a stop string."""
        return max(map(len, self.stop)) - 1 if self.stop and not self.include_stop_str_in_output else 0

    @classmethod
    def from_wire(cls, given: Mapping[str, Any]) -> Sampling:
        """The parameters of a token body; only the keys it holds are given."""
        known = {key: value for key, value in given.items() if key in cls.__slots__}
        if isinstance(known.get("stop"), str):
            known["stop"] = [known["stop"]]
        for key in ("stop", "stop_token_ids", "bad_words"):
            if known.get(key, ()) is None:
                del known[key]
        return cls(**known)

    def dump(self, *, stream: bool) -> dict[str, Any]:
        """Render's parameters, defaults left out as vLLM leaves them out."""
        plain: dict[str, Any] = {
            "n": self.n if self.n != 1 else None,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "temperature": self.temperature,
            "top_p": None if self.greedy else self.top_p,
            "top_k": None if self.greedy else self.top_k or None,
            "min_p": None if self.greedy else self.min_p,
            "seed": self.seed,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos or None,
            "max_tokens": self.max_tokens if self.max_tokens != MAX_TOKENS_DEFAULT else None,
            "min_tokens": self.min_tokens or None,
            "logprobs": self.logprobs,
            "prompt_logprobs": self.prompt_logprobs,
            "logprob_token_ids": self.logprob_token_ids,
            "skip_special_tokens": None if self.skip_special_tokens else False,
            "spaces_between_special_tokens": None if self.spaces_between_special_tokens else False,
            "include_stop_str_in_output": self.include_stop_str_in_output or None,
            "output_kind": 1 if stream else 2,
            "stream_interval": self.stream_interval,
            "skip_clone": True,
            "output_text_buffer_length": self.held_back_chars or None,
            "structured_outputs": self.structured_outputs,
            "logit_bias": self.logit_bias and {str(token): bias for token, bias in self.logit_bias.items()},
            "allowed_token_ids": self.allowed_token_ids,
            "extra_args": self.extra_args,
            "bad_words": self.bad_words,
            "skip_reading_prefix_cache": self.prompt_logprobs is not None,
            "thinking_token_budget": self.thinking_token_budget,
        }
        return {key: value for key, value in plain.items() if value is not None}

    def check_model(self, served: Served) -> None:
        """What only the engine knows: the vocabulary and how many log-probabilities it gives."""
        for param, label in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
            asked = getattr(self, param)
            if asked == -1:
                asked = served.tokenizer.vocab_size
            if asked and asked > served.logprobs_max:
                raise invalid(
                    f"Requested {label} logprobs of {asked}, which is greater than max allowed: {served.logprobs_max}",
                    param,
                    asked,
                )
        size = served.tokenizer.vocab_size
        for name in ("stop_token_ids", "logit_bias"):
            if bad := [token for token in getattr(self, name) or () if not 0 <= token < size]:
                raise invalid(
                    f"token_id(s) {bad} in {name} contain out-of-vocab token ids. Vocabulary size: {size}", name, bad
                )
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise invalid("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
            if bad := [token for token in self.allowed_token_ids if not 0 <= token < size]:
                raise invalid("allowed_token_ids contains out-of-vocab token id!", "allowed_token_ids", bad)
        _check_grammar(self.structured_outputs)

    def _check_counts(self) -> None:
        if self.n < 1:
            raise invalid(f"n must be at least 1, got {self.n}.")
        if self.n > CHOICES_MAX:
            raise invalid(
                f"n must be at most {CHOICES_MAX}, got {self.n}. "
                "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise invalid(f"max_tokens must be at least 1, got {self.max_tokens}.", "max_tokens", self.max_tokens)
        if self.min_tokens < 0:
            raise invalid(f"min_tokens must be greater than or equal to 0, got {self.min_tokens}.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise invalid(
                f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, got {self.min_tokens}."
            )
        if self.stream_interval is not None and self.stream_interval < 1:
            raise invalid(
                f"stream_interval must be at least 1, got {self.stream_interval}.",
                "stream_interval",
                self.stream_interval,
            )
        for param in ("logprobs", "prompt_logprobs"):
            asked = getattr(self, param)
            if asked is not None and asked < 0 and asked != -1:
                raise invalid(f"{param} must be non-negative or -1, got {asked}.", param, asked)

    def _check_floats(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise invalid(f"{name} must be in [-2, 2], got {getattr(self, name)}.")
        if not math.isfinite(self.repetition_penalty):
            raise invalid(f"repetition_penalty must be a finite number, got {self.repetition_penalty}.")
        if self.repetition_penalty <= 0.0:
            raise invalid(f"repetition_penalty must be greater than zero, got {self.repetition_penalty}.")
        wrong = (
            "be a finite number"
            if not math.isfinite(self.temperature)
            else "be non-negative"
            if self.temperature < 0
            else "be in [0, 2]"
            if self.temperature > 2
            else None
        )
        if wrong:
            raise invalid(f"temperature must {wrong}, got {self.temperature}.", "temperature", self.temperature)
        if not 0.0 < self.top_p <= 1.0:
            raise invalid(f"top_p must be in (0, 1], got {self.top_p}.", "top_p", self.top_p)
        if self.top_k < -1:
            raise invalid(f"top_k must be 0 (disable), or at least 1, got {self.top_k}.")
        if not 0.0 <= self.min_p <= 1.0:
            raise invalid(f"min_p must be in [0, 1], got {self.min_p}.")

    def _check_stops(self) -> None:
        if not all(self.stop):
            raise invalid("stop cannot contain an empty string.")
        if self.stop and not self.detokenize:
            raise invalid("stop strings are only supported when detokenize is True. Set detokenize=True to use stop.")
        if not all(self.bad_words):
            raise invalid(f"bad_words cannot contain an empty string. Got bad_words={self.bad_words}")


def _structured(given: Mapping[str, Any]) -> dict[str, Any]:
    full = {
        "json": given.get("json"),
        "regex": given.get("regex"),
        "choice": given.get("choice"),
        "grammar": given.get("grammar"),
        "json_object": given.get("json_object"),
        "disable_any_whitespace": given.get("disable_any_whitespace", False),
        "disable_additional_properties": given.get("disable_additional_properties", False),
        "whitespace_pattern": given.get("whitespace_pattern"),
        "structural_tag": given.get("structural_tag"),
        "_backend": None,
        "_backend_was_auto": False,
    }
    count = sum(full[kind] is not None for kind in _STRUCTURED)
    if count != 1:
        many = "You can only use one kind of structured outputs constraint but multiple are specified"
        none = "You must use one kind of structured outputs constraint but none are specified"
        raise invalid(f"{many if count else none}: {full}")
    return full


def _check_grammar(structured: Mapping[str, Any] | None) -> None:
    """Refuse what no grammar compiler would take. The words of a real compiler are richer."""
    if structured is None:
        return
    schema, pattern, choice = structured["json"], structured["regex"], structured["choice"]
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except ValueError:
            raise Refusal("Invalid JSON grammar specification.") from None
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise Refusal(f"Grammar error: invalid regex {json.dumps(pattern)}: {error}") from None
    if choice == []:
        raise Refusal("Choice '[]' cannot be an empty list")
