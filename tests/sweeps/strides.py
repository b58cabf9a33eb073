"""How much of a sweep does one run take?

By default a sample, so that the whole test run stays short: every k-th point, from a fixed offset. With
MOTOR_FLOW_SWEEP_STRIDE=1 every point; with MOTOR_FLOW_SWEEP_OFFSET=i another sample of the same size.
"""

from __future__ import annotations

import os


def stride(default):
    """The distance of two points."""
    return int(os.environ.get("MOTOR_FLOW_SWEEP_STRIDE", default))


def offset(step):
    """The first point, in 0..step-1."""
    return int(os.environ.get("MOTOR_FLOW_SWEEP_OFFSET", "0")) % step
