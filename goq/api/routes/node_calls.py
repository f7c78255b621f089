"""The routes by which nodes of a cluster call each other; they prove themselves by its secret."""

from __future__ import annotations

from goq.api.router import Route
from goq.cluster.rpc.server import Answering
from goq.http.message import Request, Response


class NodeCallRoutes:
    """Passes calls on to who checks them."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [Route("POST", "/cluster/{call}", self.answer, "Called by other nodes", waits=True)]

    async def answer(self, request: Request, _call: str) -> Response:
        """Answer a call of another node."""
        answered = await self._answering.answer(request.path, request.headers, request.body)
        return Response(
            answered.status, list(answered.body), "application/octet-stream", answered.headers
        )
