"""The streamed answer: its pieces as they come, and requests about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from goq.client.errors import SilentStream, failure_of_transport
from goq.client.protocol.request_builder import StreamTimeouts
from goq.http.client.errors import ReadTimeout, TransportError
from goq.http.client.transport import ProtocolStream

if TYPE_CHECKING:
    from goq.client._async.http import Http


class StreamedResponse:
    """A streamed answer. Requests about it go to the node that sends it."""

    def __init__(
        self, http: Http, server: str, body: ProtocolStream, timeouts: StreamTimeouts
    ) -> None:
        self.headers = body.headers
        self.server = server
        self._http = http
        self._body = body
        self._timeouts = timeouts

    async def aclose(self) -> None:
        """Break the connection."""
        await self._body.aclose()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield bytes as they come; raise when the connection breaks before the end.

        Raises ``SilentStream`` when the first bytes do not come in time.
        """
        has_come = False
        try:
            async for piece in self._body:
                if not has_come:
                    has_come = True
                    self._timeouts.heard()
                yield piece
        except ReadTimeout as error:
            if not has_come:
                raise SilentStream(self.server) from None
            raise failure_of_transport(error, self.server, is_read=True).error from error
        except TransportError as error:
            raise failure_of_transport(error, self.server, is_read=True).error from error
        finally:
            await self._body.aclose()

    async def ask(self, method: str, target: str, payload: object = None) -> Any:
        """Send JSON to the node of this stream, as :meth:`Http.ask` does."""
        return await self._http.ask(self.server, method, target, payload)
