"""Where are the effects of the request machine collected?

One registry, filled by the modules that implement its states and sealed by `effects.request`.
"""

from __future__ import annotations

from machines import REQUEST
from motor_flow.effects.context import RequestRun
from motor_flow.flow import Effects

request_effects: Effects[RequestRun] = Effects(REQUEST)
