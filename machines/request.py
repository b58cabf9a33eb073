"""Where is one OpenAI request on its way from a parsed body to a closed response?

Source: RFC 请求生命周期, 故障处理, 流式 replay 与重调度.
"""

from __future__ import annotations

from statemachine import State, StateMachine

from machines import rules as r


class RequestMachine(StateMachine):
    """One client request."""

    class active(State.Compound):  # noqa: N801 - a state, named like the others
        rendering = State(initial=True)  # Render sidecar: OpenAI request -> token ids; the route is chosen
        localizing = State()  # Render cannot be used: the local tokenizer counts, the engine renders
        admitted = State()  # flow control, on the real token ids

        class running(State.Compound):  # noqa: N801 - its attempts share one nursery, which leaving it cancels
            scheduled = State(initial=True)  # instances are reserved for every prompt that waits
            generating = State()  # engine legs and streams run; waiting for a prompt to break, or all to be done
            relaying = State()  # broken prompts are to go on elsewhere, while their siblings stream on

            placed = scheduled.to(generating, on=r.begin)
            planned = relaying.to(scheduled, on=r.renew)

        rolling_back = State()  # nothing was visible: every attempt is closed, everything starts again
        derendering = State()  # whole answers only: one batch derender
        committed = State()  # the answer is the client's; what is left of it is being written

        rendered = rendering.to(admitted)
        bypassed = rendering.to(admitted, on=r.go_native)  # the chain cannot answer this request
        localized = localizing.to(admitted)
        granted = admitted.to(running.scheduled)
        generated = (  # every attempt is done
            running.generating.to(committed, cond=r.is_native, on=r.accept)
            | running.generating.to(committed, cond=r.is_streamed)
            | running.generating.to(derendering)
        )
        derendered = derendering.to(committed, on=r.commit)

    completed = State(final=True)
    failed = State(final=True)
    cancelled = State(final=True)

    render_down = active.rendering.to(active.localizing, cond=r.may_go_native, on=r.go_native) | active.rendering.to(
        failed
    )
    no_token_engine = active.running.scheduled.to(
        active.running.scheduled, cond=r.may_go_native, on=r.go_native
    ) | active.running.scheduled.to(failed)
    unsupported = (
        active.running.generating.to(
            active.rolling_back, cond=[r.may_retry, r.may_go_native], on=[r.blame, r.go_native]
        )
        | active.running.generating.to(active.rolling_back, cond=[r.nothing_visible, r.may_retry], on=r.blame)
        | active.running.generating.to(active.running.relaying, cond=r.may_relay, on=r.blame)
        | active.running.generating.to(failed)
    )
    engine_failed = (
        active.running.generating.to(active.rolling_back, cond=[r.nothing_visible, r.may_retry], on=r.blame)
        | active.running.generating.to(active.running.relaying, cond=r.may_relay, on=r.blame)
        | active.running.generating.to(failed)
    )
    # A sibling may have become visible in the very moment in which another prompt broke.
    restored = (
        active.rolling_back.to(active.running.scheduled, cond=r.nothing_visible, on=r.rollback)
        | active.rolling_back.to(active.running.relaying, cond=r.may_relay)
        | active.rolling_back.to(failed)
    )
    delivered = active.committed.to(completed)  # the last byte has left
    fail = active.to(failed)
    cancel = active.to(cancelled)
