"""Where is one stream (one choice of one prompt) with its next chunk?

The hot loop: three transitions for every batch of engine tokens.

Source: RFC Streaming Derender, steps 1-6.
"""

from __future__ import annotations

from statemachine import State, StateMachine

from machines import rules as r


class StreamMachine(StateMachine):
    """One prompt and choice of a streamed request."""

    class active(State.Compound):  # noqa: N801 - a state, named like the others
        opening = State(initial=True)  # its engine stream is being opened; the ready barrier with its siblings
        generating = State()  # waiting for engine tokens
        derendering = State()  # tokens + committed stream_state -> OpenAI chunk
        committed = State()  # state, ledger and the client's bytes have moved, together

        ready = opening.to(generating)
        chunk = generating.to(derendering)
        derendered = derendering.to(committed, on=r.commit)

    finished = State(final=True)
    broken = State(final=True)  # the engine failed; what was committed stays committed
    failed = State(final=True)  # derender failed, or a bug: inference is never run again for it
    cancelled = State(final=True)

    onward = active.committed.to(finished, cond=r.has_finish) | active.committed.to(active.generating)
    engine_failed = active.opening.to(broken) | active.generating.to(broken)
    fail = active.to(failed)
    cancel = active.to(cancelled)
