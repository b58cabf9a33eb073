"""What do guards and edge actions decide and change?

Plain functions over the context, pure and synchronous: guards read, actions move data. No edge may hold anything else.
"""

from __future__ import annotations

from typing import Protocol


class Committing(Protocol):
    """A context with something derendered that is not the client's yet."""

    def commit(self) -> None: ...


class Accepting(Protocol):
    """A context that may hold a whole answer in the client's own form."""

    def accept(self) -> None: ...


class Finishing(Protocol):
    """A stream's context."""

    @property
    def finish(self) -> str | None: ...


# --- guards ---------------------------------------------------------------------------------------


def has_finish(ctx: Finishing) -> bool:
    """The committed chunk carried the finish reason: nothing may follow it."""
    return ctx.finish is not None


# --- actions --------------------------------------------------------------------------------------


def commit(ctx: Committing) -> None:
    """What was derendered becomes the client's, in one step."""
    ctx.commit()


def accept(ctx: Accepting) -> None:
    """An engine's own whole answer becomes the client's."""
    ctx.accept()
