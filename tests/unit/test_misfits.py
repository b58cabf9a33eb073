"""What is said about instances that do not fit."""

from __future__ import annotations

import pytest

from motor_flow.config.sections import BreakerSection, InstanceSection
from motor_flow.scheduling.misfits import misfits
from motor_flow.scheduling.registry import Instance, mixed


def instances(*given):
    return [
        Instance.of(InstanceSection(id=number, url=f"http://h{number}", **dict(one)), BreakerSection())
        for number, one in enumerate(given, 1)
    ]


UNION = {"role": "union"}
P, D = {"role": "prefill"}, {"role": "decode"}
NIXL = {"kv_connector": "NixlConnector"}
CASES = {
    "union": ([UNION, UNION], True, []),
    "pair": ([P | NIXL, D | NIXL], True, []),
    "pair and union": ([P | NIXL, D | NIXL, UNION], True, []),
    "a typo": (
        [P | {"kv_connector": "NixlConector"}, D | NIXL],
        True,
        [
            "prefill-1 takes part in no pair of prefill and decode: its kv_connector 'NixlConector' is none",
            "decode-2 (h",
        ],
    ),
    "nothing said": ([P, D], True, ["prefill-1 takes part in no pair", "decode-2 takes part in no pair"]),
    "half a pair": ([P | NIXL], True, ["prefill-1 (handoff) has no partner of the other role"]),
    "no way to call back": (
        [P | {"dispatch_profile": "trigger"}, D | {"dispatch_profile": "trigger"}],
        False,
        ["no pair works by trigger: decode engines cannot call back"],
    ),
    "mixed": (
        [P | NIXL, D | {"dispatch_profile": "trigger"}, UNION],
        True,
        ["every request gets 503: instances of handoff (prefill-1) and trigger (decode-2) are registered side by side"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_misfit_is_named(case):
    given, callbacks, said = CASES[case]
    lines = misfits(instances(*given), callbacks=callbacks)
    assert len(lines) == len(said), lines
    for line, beginning in zip(lines, said, strict=True):
        assert line.startswith(beginning)


def test_one_engine_under_two_names():
    same = instances(UNION, UNION)
    same[1].url = same[0].url
    assert misfits(same, callbacks=True) == [
        "union-1, union-2 are one engine, http://h1: its load and its failures are counted apart"
    ]


def test_only_mixed_profiles_serve_nothing():
    assert mixed(instances(P | NIXL, D | NIXL, UNION)) is None
    assert mixed(instances(P | NIXL, D | {"dispatch_profile": "trigger"})) is not None
