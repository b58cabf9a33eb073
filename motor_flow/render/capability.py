"""What can the sidecars do?

Probed once at the start and before ready: versions and routes, one render, one streaming derender on its ids, and
which of the parsers' markers are single tokens; later probes are GETs. A sidecar that could not be probed is judged
by its version, and one that was never seen is taken at its configuration's word: requests find out.

| vLLM | streaming derender | whole derender, as native vLLM would |
|---|---|---|
| < 0.27 | none | no (halves of characters) |
| 0.27 - 0.30 | completions, and chat without a parser (with one: 501) | no |
| 0.31 - 0.32 | chat with a parser leaks stop tokens into the text: not used | from 0.32: completions |
| >= 0.33 | all | yes |

What else an old release does differently is a row of `render.route`.

Source: contract section 7 (Probe); measured on 0.28, 0.32 and 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from machines.tokens import Thought
from motor_flow.render.markers import MARKERS

NON_STREAM_SINCE = (0, 24)
STREAM_SINCE = (0, 27)
CHAT_STREAM_WITH_PARSER_SINCE = (0, 33)
WHOLE_SINCE = (0, 32)
EXACT_SINCE = (0, 33)


@dataclass(frozen=True, slots=True)
class Capability:
    """What the chain may ask of the sidecars.

    Attributes:
        enabled: render_config.enable.
        streaming: render_config.enable_streaming.
        renders: a probe was rendered; told to people, requests find out themselves.
        derenders: whole answers.
        streams: completions chunks.
        streams_chat: chat chunks.
        parser: a tool or reasoning parser is configured; None when unknown.
        markers: ids of the single tokens that parsers look for; None when nobody could say.
        marker_texts: what they stand for; all that are known when nobody could say.
        thought: the tokens around reasoning; None: no reasoning parser, or its end is not one token.
        version: as /version says, or empty.
        release: (major, minor) of the oldest sidecar; None: unknown, and taken for a current one.
        missing: what a person should know, one line each.

    """

    enabled: bool = True
    streaming: bool = True
    renders: bool = True
    derenders: bool = True
    streams: bool = True
    streams_chat: bool = True
    parser: bool | None = None
    markers: frozenset[int] | None = None
    marker_texts: frozenset[str] = frozenset(MARKERS)
    thought: Thought | None = None
    version: str = ""
    release: tuple[int, int] | None = None
    missing: tuple[str, ...] = ()

    @property
    def marks_known(self) -> bool:
        """No boundary that a chat parser looks for can be missed."""
        return self.parser is False or self.markers is not None

    def before(self, release: tuple[int, int]) -> bool:
        """A sidecar is older than this."""
        return self.release is not None and self.release < release


def combined(found: Sequence[Capability]) -> Capability:
    """What may be asked of any of several sidecars, since each call may go to another one."""
    parsers = {each.parser for each in found}
    parser = True if True in parsers else None if None in parsers else False
    unknown = any(not each.marks_known for each in found)
    thoughts = {each.thought for each in found}
    return Capability(
        renders=all(each.renders for each in found),
        derenders=all(each.derenders for each in found),
        streams=all(each.streams for each in found),
        streams_chat=all(each.streams_chat for each in found),
        parser=parser,
        markers=None if unknown else frozenset().union(*(each.markers or () for each in found)),
        marker_texts=frozenset().union(*(each.marker_texts for each in found)),
        thought=thoughts.pop() if len(thoughts) == 1 else None,
        version=", ".join(dict.fromkeys(each.version for each in found)),
        release=min((each.release for each in found if each.release is not None), default=None),
        missing=tuple(line for each in found for line in each.missing),
    )


def by_version(version: str, *, parser: bool | None) -> Capability:
    """What a sidecar of this version can do. An unreadable version is taken for a current one."""
    number = version_number(version)
    if number is None:
        return Capability(parser=parser, version=version)
    derenders = number >= NON_STREAM_SINCE
    streams = number >= STREAM_SINCE
    streams_chat = streams and (parser is False or number >= CHAT_STREAM_WITH_PARSER_SINCE)
    missing = []
    if not derenders:
        missing.append(f"vLLM {version} has no derender endpoints (0.24 and newer do): all requests go native")
    elif not streams:
        missing.append(f"vLLM {version} has no streaming derender (0.27 and newer do): streams go native")
    elif not streams_chat:
        missing.append(
            f"vLLM {version} cannot derender chat streams with parsers as native vLLM would (0.33 and newer can): "
            "chat streams go native"
        )
    if derenders and number < WHOLE_SINCE:
        missing.append(
            f"vLLM {version} does not derender whole answers, nor stop strings and log-probabilities in streams, as "
            "native vLLM would (0.32 and newer can): they go native"
        )
    elif derenders and number < EXACT_SINCE:
        missing.append(
            f"vLLM {version} does not derender whole chats, nor stop strings of whole completions, as native vLLM "
            "would (0.33 and newer can): they go native"
        )
    return Capability(
        derenders=derenders,
        streams=streams,
        streams_chat=streams_chat,
        parser=parser,
        version=version,
        release=number,
        missing=tuple(missing),
    )


def version_number(version: str) -> tuple[int, int] | None:
    """(major, minor) of a vLLM version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None
