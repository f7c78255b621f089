"""The calls about tokens and the audit trail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from goq.client import results
from goq.client._async.http import Http
from goq.client.arguments import Duration, Time, as_dict, as_texts, as_time, wire_duration
from goq.client.protocol import routes

_AUDIT_PAGE = 1000


class AsyncTokenAdmin:
    """The calls about tokens and the audit trail; most need the rule ``admin:*``."""

    _http: Http

    async def create_token(
        self,
        name: str,
        allow: Sequence[str],
        *,
        expires: Duration | None = None,
        cert: str | None = None,
        quotas: Mapping[str, str | int] | None = None,
        aws: bool = False,
    ) -> results.token.CreatedToken:
        """Create a token; its text is in the result, and nowhere else.

        ``allow`` are rules: ``verb:topic`` or ``verb:topic/group``, as ``consume:orders*/billing``.
        ``expires`` is how long the token is valid; by default it does not end. ``cert`` is the CN
        of a client certificate, or a URI in it: such a token has no text.
        ``quotas`` are bounds as ``{"publish_bytes_per_s": "10MB"}``, see docs/security.md.
        With ``aws`` the token has a key pair for AWS SDKs, see docs/sqs.md.

        Raises ``InvalidInput`` for a rule that is wrong.
        """
        body: dict[str, object] = {"name": name, "allow": as_texts(allow, "allow")}
        if expires is not None:
            body["expires"] = wire_duration(expires, "expires")
        if cert is not None:
            body["cert"] = cert
        if quotas:
            body["quotas"] = as_dict(quotas, "quotas")
        if aws:
            body["aws"] = True
        return results.token.decode_created(await self._http.call("POST", routes.TOKENS, body))

    async def list_tokens(self) -> tuple[results.token.TokenDescription, ...]:
        """Return all tokens, also those that ended in the last 90 days."""
        return results.token.decode_tokens(await self._http.call("GET", routes.TOKENS))

    async def rotate_token(
        self, token_id: str, *, grace: Duration = 0
    ) -> results.token.CreatedToken:
        """Give a token another secret, and keep the one before valid for ``grace``.

        Raises ``NotFound``, and ``Conflict`` for a token that has ended, or while an earlier grace
        runs, unless ``grace`` is 0: that ends both earlier secrets.
        """
        target = f"{routes.token(token_id)}/rotate"
        body = {"grace": wire_duration(grace, "grace")}
        answer = await self._http.call("POST", target, body)
        return results.token.decode_created(answer)

    async def revoke_token(self, token_id: str) -> None:
        """Make a token invalid for good. Raises ``NotFound``."""
        await self._http.call("DELETE", routes.token(token_id), repeatable=True)

    async def read_audit(
        self,
        *,
        since: Time | None = None,
        until: Time | None = None,
        principal: str | None = None,
    ) -> AsyncIterator[results.audit.AuditEntry]:
        """Yield the records of the audit trail up to its current end, the oldest first.

        They are those of ``since`` or later and before ``until``. ``principal`` is the id or the
        name of a token. Needs the rule ``admin:*`` or ``read:__audit``. Raises ``NotAllowed``.
        """
        offset: int | None = 0
        while offset is not None:
            target = routes.query(
                routes.AUDIT,
                limit=_AUDIT_PAGE,
                offset=offset,
                since=None if since is None else as_time(since, "since"),
                until=None if until is None else as_time(until, "until"),
                principal=principal,
            )
            answer = await self._http.call("GET", target)
            page = results.audit.decode_page(answer)
            for record in page.records:
                yield record
            offset = page.next

    async def whoami(self) -> results.token.Identity:
        """Return the sender of this client's requests, and its rules."""
        return results.token.decode_identity(await self._http.call("GET", routes.WHOAMI))
