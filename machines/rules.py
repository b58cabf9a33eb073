"""What do guards and edge actions decide and change?

Plain functions over the context, pure and synchronous: guards read, actions move data. No edge may hold anything else.
What they mean in data is in `context.py`; here are the words that the pictures show.
"""

from __future__ import annotations

from typing import Protocol


class Finishing(Protocol):
    """A stream's context, as its guard sees it."""

    @property
    def finish(self) -> str | None: ...


class Committing(Protocol):
    """A context with something derendered that is not the client's yet."""

    def commit(self) -> None: ...


class Request(Protocol):
    """A request's context."""

    visible: bool
    obfuscated: bool
    native_offered: bool
    stream: bool
    route: str

    @property
    def may_retry(self) -> bool: ...
    @property
    def may_relay(self) -> bool: ...
    def accept(self) -> None: ...
    def begin(self) -> None: ...
    def blame(self) -> None: ...
    def renew(self) -> None: ...
    def rollback(self) -> None: ...
    def go_native(self) -> None: ...


class Health(Protocol):
    """An instance's context."""

    def grow(self) -> None: ...
    def put_on_trial(self) -> None: ...


# --- guards ---------------------------------------------------------------------------------------


def has_finish(ctx: Finishing) -> bool:
    """The committed chunk carried the finish reason: nothing may follow it."""
    return ctx.finish is not None


def is_native(ctx: Request) -> bool:
    """The engine has spoken OpenAI itself."""
    return ctx.route == "native"


def is_streamed(ctx: Request) -> bool:
    """Every chunk was derendered as it came."""
    return ctx.stream


def nothing_visible(ctx: Request) -> bool:
    """The client has seen no token: the answer may be started again."""
    return not ctx.visible


def may_retry(ctx: Request) -> bool:
    """Attempts are left, and another one may do better."""
    return ctx.may_retry


def may_relay(ctx: Request) -> bool:
    """Each broken prompt may go on where its visible answer is."""
    return ctx.may_relay


def may_go_native(ctx: Request) -> bool:
    """Not done yet, nothing is visible, and engines may see the request as the client sent it, and can read it."""
    return ctx.native_offered and not (ctx.route == "native" or ctx.visible or ctx.obfuscated)


# --- actions --------------------------------------------------------------------------------------


def commit(ctx: Committing) -> None:
    """What was derendered becomes the client's, in one step."""
    ctx.commit()


def accept(ctx: Request) -> None:
    """An engine's own whole answer becomes the client's."""
    ctx.accept()


def begin(ctx: Request) -> None:
    """The attempts that have got their instances are counted, and remember where they began."""
    ctx.begin()


def blame(ctx: Request) -> None:
    """Broken attempts are held against their instances."""
    ctx.blame()


def renew(ctx: Request) -> None:
    """Broken prompts wait for another attempt, with everything they have committed."""
    ctx.renew()


def rollback(ctx: Request) -> None:
    """All prompts wait for another attempt, from where the last one began."""
    ctx.rollback()


def go_native(ctx: Request) -> None:
    """The next attempt speaks OpenAI to its engine."""
    ctx.go_native()


def grow(ctx: Health) -> None:
    """The breaker opens for longer than the last time."""
    ctx.grow()


def put_on_trial(ctx: Health) -> None:
    """The next failure opens the breaker again."""
    ctx.put_on_trial()
