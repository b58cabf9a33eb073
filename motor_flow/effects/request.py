"""What does a request do in each state of its machine?

| state | module |
|---|---|
| rendering, localizing | `rendering` |
| admitted, scheduled | `placing` |
| generating, relaying, rolling_back | `running` |
| derendering, committed, the final ones | `answering` |

Importing this module completes the registry and refuses to start unless effects and edges fit.

Source: RFC 请求生命周期.
"""

from __future__ import annotations

from motor_flow.effects import answering, placing, rendering, running
from motor_flow.effects.registered import request_effects

__all__ = ["answering", "placing", "rendering", "request_effects", "running"]

request_effects.nursery_of("running")
request_effects.beyond_deadline("committed")  # a client that reads too slowly is the server's business
request_effects.seal()
