"""Where is one OpenAI request on its way from a parsed body to a closed response?

Source: RFC 请求生命周期, 故障处理.
"""

from __future__ import annotations

from statemachine import State, StateMachine

from machines import rules as r


class RequestMachine(StateMachine):
    """One client request."""

    class active(State.Compound):  # noqa: N801 - a state, named like the others
        rendering = State(initial=True)  # Render sidecar: OpenAI request -> token ids; the route is chosen
        admitted = State()  # flow control, on the real token ids
        scheduled = State()  # instances are reserved for one attempt
        generating = State()  # the engine legs and the N streams run in one nursery
        derendering = State()  # whole answers only: one batch derender
        committed = State()  # the answer is the client's; what is left of it is being written

        rendered = rendering.to(admitted)
        granted = admitted.to(scheduled)
        placed = scheduled.to(generating)
        generated = generating.to(derendering)  # every whole token answer is here
        streamed = generating.to(committed)  # every stream has committed its last chunk
        answered = generating.to(committed, on=r.accept)  # native route: the engine spoke OpenAI itself
        derendered = derendering.to(committed, on=r.commit)

    completed = State(final=True)
    failed = State(final=True)
    cancelled = State(final=True)

    delivered = active.committed.to(completed)  # the last byte has left
    fail = active.to(failed)
    cancel = active.to(cancelled)
