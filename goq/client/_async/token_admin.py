"""The calls about tokens."""

from __future__ import annotations

from collections.abc import Sequence

from goq.client import results
from goq.client._async.http import Http
from goq.client.arguments import Duration, wire_duration
from goq.client.protocol import routes


class AsyncTokenAdmin:
    """The calls about tokens; all but :meth:`whoami` need the rule ``admin:*``."""

    _http: Http

    async def create_token(
        self, name: str, allow: Sequence[str], *, expires: Duration | None = None
    ) -> results.token.CreatedToken:
        """Create a token; its text is in the result, and nowhere else.

        ``allow`` are rules: ``verb:topic`` or ``verb:topic/group``, as ``consume:orders*/billing``.
        ``expires`` is how long the token is valid; by default it does not end.

        Raises ``InvalidInput`` for a rule that is wrong.
        """
        body: dict[str, object] = {"name": name, "allow": list(allow)}
        if expires is not None:
            body["expires"] = wire_duration(expires, "expires")
        return results.token.decode_created(await self._http.call("POST", routes.TOKENS, body))

    async def list_tokens(self) -> tuple[results.token.TokenDescription, ...]:
        """Return all tokens, also those that ended in the last 90 days."""
        return results.token.decode_tokens(await self._http.call("GET", routes.TOKENS))

    async def rotate_token(
        self, token_id: str, *, grace: Duration = 0
    ) -> results.token.CreatedToken:
        """Give a token another secret, and keep the one before valid for ``grace``.

        Raises ``NotFound``, and ``Conflict`` for a revoked token.
        """
        target = f"{routes.token(token_id)}/rotate"
        answer = await self._http.call("POST", target, {"grace": grace})
        return results.token.decode_created(answer)

    async def revoke_token(self, token_id: str) -> None:
        """Make a token invalid for good. Raises ``NotFound``."""
        await self._http.call("DELETE", routes.token(token_id), repeatable=True)

    async def whoami(self) -> results.token.Identity:
        """Return the sender of this client's requests, and its rules."""
        return results.token.decode_identity(await self._http.call("GET", routes.WHOAMI))
