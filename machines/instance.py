"""May an engine instance be given work?

Consecutive failures open its circuit breaker for a time that grows with every opening. Then it is asked whether it
lives; if so it gets work again, but on trial: one failure more, and it is out for longer. An instance that was replaced
or removed is retired: it gets no work again.

Source: contract sections 4 and 7 (Breaker); RFC 故障处理 (Engine 熔断).
"""

from __future__ import annotations

from statemachine import State, StateMachine

from machines import rules as r


class InstanceMachine(StateMachine):
    """One engine instance."""

    class active(State.Compound):  # noqa: N801 - a state, named like the others
        available = State(initial=True)  # gets work
        opened = State()  # the breaker is open: no work
        probing = State()  # asked whether it lives

        tripped = available.to(opened, on=r.grow)
        due = opened.to(probing)
        recovered = probing.to(available, on=r.put_on_trial)
        relapsed = probing.to(opened, on=r.grow)

    retired = State(final=True)  # replaced or removed
    failed = State(final=True)
    cancelled = State(final=True)

    retire = active.to(retired)
    fail = active.to(failed)
    cancel = active.to(cancelled)
