"""What cannot be asked of an engine that knows only permuted tokens?

Engines read some parameters as text: they would apply them to the wrong tokens, and read the text. Such a request is
refused before any engine is asked. So is a field that is not known here and may hold text or ids; what can hold neither
(nothing, a switch, a fraction) passes. Numbers pass by name, because a token id is a number.

| what | becomes |
|---|---|
| `REFUSED` | 501, with the reason |
| `IDS`, `ID_KEYS`, `ID` | physical ids |
| `PLAIN` | the same: no ids, and nothing that depends on how they are numbered |
| `UNSENT` | left out: engines do not need it, and it shows something of the text |

Source: contract section 7 (Obfuscating); vLLM 0.33 sampling_params.py, scale_out/token_in_token_out/protocol.py.
"""

from __future__ import annotations

from typing import Any

import msgspec

from machines.tokens import TokenizedPrompt
from motor_flow.errors import ClientError

REFUSED = {
    # of sampling_params
    "structured_outputs": "an engine would hold its permuted tokens against a grammar of plain text",
    "guided_decoding": "an engine would hold its permuted tokens against a grammar of plain text",
    "bad_words": "an engine would split the words into plain tokens",
    "stop": "an engine would look for the text in what it reads from permuted tokens",
    "prompt_logprobs": "an engine spells the tokens itself, and would spell the permuted ones",
    "prompt_logprob_token_ids": "only an engine's own interface gives an answer to it",
    "extra_args": "nobody knows what its plug-in would read in it",
    # of a prompt
    "features": "pictures and sounds are not hidden: there is no provider for them",
    "content_parts": "pictures and sounds are not hidden: there is no provider for them",
}
IDS = frozenset(
    {"stop_token_ids", "allowed_token_ids", "logprob_token_ids", "trace_decode_token_ids", "_all_stop_token_ids"}
)
ID_KEYS = frozenset({"logit_bias"})
ID = frozenset({"_eos_token_id"})
PLAIN = frozenset(
    {
        "n",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "min_tokens",
        "logprobs",
        "output_kind",
        "stream_interval",
        "output_text_buffer_length",
        "thinking_token_budget",  # counted between markers, which are on the white list
        "repetition_detection",
        "routed_experts_prompt_start",
    }
)
PLAIN_OF_PROMPT = frozenset(
    {
        "request_id",
        "model",
        "stream",
        "stream_options",
        "return_token_ids",
        "reasoning_ended",
        "cache_salt",
        "priority",
        "output_mode",
        "kv_transfer_params",  # the client's is removed by now: this one is an engine's
        "ec_transfer_params",
    }
)
UNSENT = frozenset(
    {
        "token_offsets",  # how long each token's text is
        "parse_context",  # the client's tools; read for output_mode="derender" only
        "reasoning_parser_kwargs",  # the client's template arguments; read for grammars only
    }
)


def refused(prompt: TokenizedPrompt) -> ClientError | None:
    """Why engines cannot be given this prompt, if they cannot."""
    known = PLAIN | IDS | ID_KEYS | ID
    for fields, passes in ((prompt.sampling, known), (prompt.rest, PLAIN_OF_PROMPT | UNSENT)):
        for name, value in fields.items():
            if name in passes or _says_nothing(value):
                continue
            return _error(name, REFUSED.get(name, "it is not known here whether it holds tokens or text"))
    return None


def natively(reason: str) -> ClientError:
    """The request would need an engine's own OpenAI API, and show everything to it."""
    return ClientError(
        f"token obfuscation is on, and only an engine that reads this request in clear could answer it: {reason}",
        status=501,
    )


def _says_nothing(value: Any) -> bool:
    """Neither tokens nor text: null, a switch, a fraction, nothing at all."""
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    return value is None or isinstance(value, bool | float) or value in ([], {}, "")


def _error(name: str, reason: str) -> ClientError:
    return ClientError(f"token obfuscation is on, and {name} cannot be hidden: {reason}", status=501, param=name)
