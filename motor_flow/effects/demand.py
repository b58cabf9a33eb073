"""How many tokens does a request need while it runs?

| what | known | guessed |
|---|---|---|
| prompt | counted, by Render or locally | from its length in characters |
| output of each choice | `max_tokens` as rendered, if the client named it | that, but at most `unasked_output_tokens` |

A chat that names no budget may use the rest of the context, and hardly ever does: counting all of it would leave most
of the capacity idle. A completion that names none may use 16 tokens, and that is what counts.

Source: RFC 流控; contract section 7; vLLM 0.33 (a chat's default budget is the context, a completion's is 16).
"""

from __future__ import annotations

from motor_flow.effects.context import RequestRun
from motor_flow.render.budget import asked_output
from motor_flow.render.tokenization import VLLM_DEFAULT_MAX_TOKENS
from motor_flow.scheduling.admission import Need

CHARS_PER_TOKEN = 4
"""Of prompts that nobody has counted: usual for text, too few for languages with one token per character."""

PROMPT_FIELDS = ("messages", "tools", "documents", "prompt", "prompt_embeds", "input", "instructions", "system")
SILENT_PATHS = frozenset({"/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/messages/count_tokens"})
"""Routes whose answers are not generated."""


def needs(run: RequestRun, unasked_tokens: int) -> list[Need]:
    """Of each prompt.

    Args:
        run: the request, rendered or not.
        unasked_tokens: output budget of a choice that names none (flow_control_config.unasked_output_tokens).

    """
    if run.tokens is None:
        return [_uncounted(run, unasked_tokens)]
    found = []
    for prompt in run.tokens.prompts:
        output = _output(run, prompt.sampling.get("max_tokens"), len(prompt.ids), unasked_tokens)
        found.append(Need(len(prompt.ids) + prompt.n * output.known, prompt.n * output.guessed))
    return found


def _uncounted(run: RequestRun, unasked_tokens: int) -> Need:
    envelope, context = run.envelope, run.services.context_tokens()
    chars = sum(memoryview(raw).nbytes for key, raw in envelope.fields.items() if key in PROMPT_FIELDS)
    guess = chars // CHARS_PER_TOKEN + 1
    prompts = envelope.prompts
    if context is not None:
        guess = min(guess, context * prompts)
    output = _output(run, None, 0, unasked_tokens)
    choices = prompts * envelope.n
    return Need(choices * output.known, guess + choices * output.guessed)


def _output(run: RequestRun, allowed: int | None, prompt_tokens: int, unasked_tokens: int) -> Need:
    """Of one choice.

    Args:
        run: the request.
        allowed: what Render has written into the request; None: it was not asked, or could not be.
        prompt_tokens: as far as they were counted.
        unasked_tokens: see `needs`.

    """
    if run.path in SILENT_PATHS:
        return Need(0)
    asked = asked_output(run.envelope)
    if asked is not None:
        if allowed is None:
            context = run.services.context_tokens()
            allowed = asked[1] if context is None else min(asked[1], max(1, context - prompt_tokens))
        return Need(allowed)
    if allowed is None:
        allowed = VLLM_DEFAULT_MAX_TOKENS if run.envelope.api == "completions" else unasked_tokens
    return Need(0, min(allowed, unasked_tokens))
