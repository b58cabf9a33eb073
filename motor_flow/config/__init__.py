"""Configuration: `sections.py` says what may be set, `load.py` how it is read, `pending.py` what has no effect yet."""

from __future__ import annotations

from motor_flow.config.load import BadConfiguration, Loaded, load, load_embedded
from motor_flow.config.sections import Config, EndpointSection, InstanceSection

__all__ = ["BadConfiguration", "Config", "EndpointSection", "InstanceSection", "Loaded", "load", "load_embedded"]
