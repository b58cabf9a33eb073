"""What does a request get that no route has taken?

The outermost application of a port. It turns the expected failures of everything behind it into the project's error
shape, names the request in the response, and leaves a line in the log: a refused request is one, too.

Source: contract section 3.
"""

from __future__ import annotations

from motor_flow.edge.asgi import ASGIApp, Message, Receive, Scope, Send
from motor_flow.edge.identity import request_id
from motor_flow.edge.routes import JSON, error_headers, respond
from motor_flow.errors import MotorFlowError
from motor_flow.telemetry.log import get_logger

_log = get_logger()


class Door:
    """Lets every request in, and says why when one is turned away.

    Args:
        app: behind it; may raise `MotorFlowError` as long as it has not answered.

    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = request_id(scope)
        echo = (b"x-request-id", name.encode())

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start" and not any(key == echo[0] for key, _ in message["headers"]):
                message["headers"] = [*message["headers"], echo]
            await send(message)

        try:
            await self._app(scope, receive, named)
        except MotorFlowError as error:
            _log.info(
                "request.end",
                request_id=name,
                outcome="refused",
                status=error.status,
                stage=error.stage,
                type=error.kind,
                reason=error.message,
                path=scope["path"],
            )
            headers = [JSON, *error_headers(error)]
            await respond(named, error.status, error.encode(), headers)
