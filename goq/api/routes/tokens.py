"""Routes of tokens: create, list, rotate, revoke; and who the sender of a request is."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import asdict

from goq.access.aws_key import AWS_MARK, has_aws_key
from goq.access.quota import format_quota, is_quota, parse_quotas
from goq.access.token_manager import (
    NewSecret,
    TokenManager,
    TokenStore,
    lifetime_ms,
    token_duration_ms,
)
from goq.access.token_record import DAY_MS, TokenRecord
from goq.api.codec.messages import json_response, list_response
from goq.api.codec.request import json_body
from goq.api.needs import ADMINISTER, TOKEN, principal_of
from goq.api.route import Route
from goq.api.routing_policy import CustomRouting
from goq.api.schemas.tokens import (
    CreatedTokenOut,
    NewToken,
    PrincipalOut,
    Rotation,
    TokenOut,
    TokensOut,
)
from goq.http.message import Request, Response
from goq.units import format_time_us

_TOKENS = "/v1/tokens"
_DATE_CHARS = 10


class TokenRoutes:
    """Create, list, rotate and revoke of tokens."""

    def __init__(self, store: TokenStore, manager: TokenManager) -> None:
        self._store = store
        self._manager = manager

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                _TOKENS,
                self.create,
                "Create a token; the answer has its secret, this once",
                body=NewToken,
                is_body_audited=True,
                answer=CreatedTokenOut,
                status=201,
                routing=CustomRouting.CHANGE_METADATA,
                needs=ADMINISTER,
            ),
            Route(
                "GET",
                _TOKENS,
                self.list,
                "List the tokens, also those that ended in the last 90 days",
                answer=TokensOut,
                routing=CustomRouting.SHOW_METADATA,
                needs=ADMINISTER,
            ),
            Route(
                "POST",
                f"{_TOKENS}/{{token}}/rotate",
                self.rotate,
                "Give a token another secret",
                body=Rotation,
                is_body_audited=True,
                answer=CreatedTokenOut,
                errors=("not_found", "conflict"),
                routing=CustomRouting.CHANGE_METADATA,
                needs=ADMINISTER,
            ),
            Route(
                "DELETE",
                f"{_TOKENS}/{{token}}",
                self.revoke,
                "Revoke a token",
                status=204,
                errors=("not_found", "conflict"),
                routing=CustomRouting.CHANGE_METADATA,
                needs=ADMINISTER,
            ),
            Route(
                "GET",
                "/v1/whoami",
                self.whoami,
                "Show whose token this is, and what it allows",
                answer=PrincipalOut,
                needs=TOKEN,
            ),
        ]

    async def create(self, request: Request) -> Response:
        """Create a token."""
        new = json_body(request, NewToken)
        created = await self._manager.create(
            new.name,
            new.allow,
            lifetime_ms(new.expires),
            new.cert,
            new.quotas,
            aws=bool(new.aws),
        )
        return json_response(_created(created), 201)

    async def list(self, _request: Request) -> Response:
        """List tokens, the newest first."""
        found = sorted(self._store.tokens.values(), key=lambda token: (-token.created_ms, token.id))
        return await list_response("tokens", map(token_out, found))

    async def rotate(self, request: Request, token_id: str) -> Response:
        """Give a token another secret."""
        grace_ms = token_duration_ms(json_body(request, Rotation).grace, "grace")
        return json_response(_created(await self._manager.rotate(token_id, grace_ms)))

    async def revoke(self, _request: Request, token_id: str) -> Response:
        """Revoke a token."""
        await self._manager.revoke(token_id)
        return Response(204)

    def whoami(self, request: Request) -> Response:
        """Show the sender."""
        principal = principal_of(request)
        out = PrincipalOut(
            auth="off" if request.principal is None else "tokens",
            id=principal.id,
            name=principal.name,
            allow=[str(rule) for rule in principal.rules],
        )
        if principal.expires_ms:
            out.expires = format_time_us(principal.expires_ms * 1000)
        return json_response(out)


def token_out(token: TokenRecord) -> TokenOut:
    """Return a token without its secret."""
    out = TokenOut(
        id=token.id,
        name=token.name,
        allow=[rule for rule in token.rules if not is_quota(rule) and rule != AWS_MARK],
        created=format_time_us(token.created_ms * 1000),
    )
    if token.expires_ms:
        out.expires = format_time_us(token.expires_ms * 1000)
    if token.revoked_ms:
        out.revoked = format_time_us(token.revoked_ms * 1000)
    if quotas := parse_quotas(token.rules):
        out.quotas = {str(quota): format_quota(quota, bound) for quota, bound in quotas.items()}
    if has_aws_key(token):
        out.aws = True
    if token.certificate is not None:
        out.cert = token.certificate
    if token.last_used_day:
        out.last_used = format_time_us(token.last_used_day * DAY_MS * 1000)[:_DATE_CHARS]
    return out


def _created(new: NewSecret) -> CreatedTokenOut:
    out = CreatedTokenOut(**asdict(token_out(new.record)), token=new.text or UNSET)
    if new.aws_secret is not None:
        out.aws_access_key_id, out.aws_secret_access_key = new.record.id, new.aws_secret
    return out
