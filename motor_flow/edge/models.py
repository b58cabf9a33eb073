"""What do `/v1/models` and `/v1/models/{id}` answer?

Source: contract section 3; cards as vLLM shows them, `max_model_len` included.
"""

from __future__ import annotations

from motor_flow.edge.asgi import Receive, Scope, Send
from motor_flow.edge.routes import respond_json
from motor_flow.errors import ClientError
from motor_flow.scheduling.models import Models

PATH = "/v1/models"


class ModelRoutes:
    """Both routes."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def list(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await respond_json(send, {"object": "list", "data": self._models.cards})

    async def one(self, scope: Scope, _receive: Receive, send: Send) -> None:
        name: str = scope["path"].removeprefix(PATH + "/")
        card = self._models.card(name)
        if card is None:
            raise ClientError(f"The model `{name}` does not exist.", status=404, param="model")
        await respond_json(send, card)
