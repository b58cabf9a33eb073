"""May a Render sidecar be given new requests?

It is probed fully when it is new, has come back, or is not what it was; a short breaker keeps new requests away from
one that does not answer. Streams in flight are not affected by any of it.

Source: RFC 故障处理 (findings concern new requests only); contract section 7 (Probe).
"""

from __future__ import annotations

from statemachine import State, StateMachine


class SidecarMachine(StateMachine):
    """One Render sidecar."""

    class active(State.Compound):  # noqa: N801 - a state, named like the others
        probing = State(initial=True)  # asked for everything it can do
        available = State()  # watched: is it still there, and the same?
        degraded = State()  # does not answer: new requests do not wait for it

        found = probing.to(available)
        lost = probing.to(degraded) | available.to(degraded)
        changed = available.to(probing)
        due = degraded.to(probing)

    failed = State(final=True)
    cancelled = State(final=True)

    fail = active.to(failed)
    cancel = active.to(cancelled)
