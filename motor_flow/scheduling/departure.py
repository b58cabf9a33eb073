"""How does running work learn that what it works on has gone?

It runs inside a cancel scope that it was given; whoever announces the departure cancels all of these, synchronously.

    scope = departure.scope()
    with scope:
        await work()
    if scope.cancelled_caught: ...     # it has gone, and nothing else has cancelled us
"""

from __future__ import annotations

from weakref import WeakSet

import trio


class Departure:
    """Something that happens once, or never.

    Attributes:
        announced: it has happened.

    """

    __slots__ = ("_reason", "_scopes", "announced")

    def __init__(self) -> None:
        self._scopes: WeakSet[trio.CancelScope] = WeakSet()
        self._reason = ""
        self.announced = False

    def scope(self) -> trio.CancelScope:
        """A new scope that ends when it happens; at its first checkpoint, if it has happened already."""
        scope = trio.CancelScope()
        if self.announced:
            scope.cancel(reason=self._reason)
        else:
            self._scopes.add(scope)
        return scope

    def announce(self, reason: str) -> None:
        """It happens."""
        self.announced, self._reason = True, reason
        for scope in list(self._scopes):
            scope.cancel(reason=reason)
        self._scopes.clear()
