"""Creation, rotation and revocation of tokens.

Every change replaces one record, unless another change has replaced it meanwhile. The secret is
returned once and stored nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from goq import limits
from goq.access.aws_key import AWS_MARK, aws_secret_of, has_aws_key
from goq.access.quota import quota_texts
from goq.access.rule import NO_QUOTAS, parse_rule
from goq.access.token import draw_secret, draw_token_id, format_token, without_secrets
from goq.access.token_record import DAY_MS, TokenRecord, digest_of, digest_of_certificate
from goq.errors import Conflict, GoqError, InvalidInput, NotFound
from goq.model import check_name
from goq.units import format_time_us, parse_duration_ms

_ATTEMPTS: Final = 5
_CERTIFICATE_NAME = re.compile(r"[ -~]{1,200}")


class TokenStore(Protocol):
    """The store of tokens; a change is durable on return, in a cluster committed."""

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The tokens by id: another object after each change."""
        ...

    async def put_token(self, record: TokenRecord) -> None:
        """Insert or replace a token.

        Raises ``Conflict`` if the stored version is not the one before the record's.
        """
        ...


class NewSecret(NamedTuple):
    """A token's record and its text, which is known at this moment only; empty without a secret."""

    record: TokenRecord
    text: str

    @property
    def aws_secret(self) -> str | None:
        """The secret access key, None for a token without a key pair."""
        return aws_secret_of(self.record.digest) if has_aws_key(self.record) else None


class TokenManager:
    """Changes the tokens of a store; ``now_ms`` is the clock."""

    def __init__(self, store: TokenStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    async def create(
        self,
        name: str,
        rules: Sequence[str],
        expires_in_ms: int = 0,
        certificate: str | None = None,
        quotas: Mapping[str, str | int] = NO_QUOTAS,
        *,
        aws: bool = False,
    ) -> NewSecret:
        """Create a token that expires after ``expires_in_ms``, 0 for never.

        With ``certificate`` a client certificate of that name shows it, and it has no secret. With
        ``aws`` it has a key pair for AWS SDKs.
        Raises ``InvalidInput`` for a name or rules that are wrong, or too many tokens.
        """
        created = new_token(
            name, rules, self._now_ms(), expires_in_ms, certificate, quotas, aws=aws
        )
        await self._store.put_token(created.record)
        return created

    async def rotate(self, token_id: str, grace_ms: int) -> NewSecret:
        """Replace a token's secret; the one before is valid for ``grace_ms`` more.

        Raises ``NotFound``, and ``Conflict`` for a token that has ended. So it does while the grace
        of an earlier rotation runs, unless ``grace_ms`` is 0: a third valid secret has no place.
        """
        secret, now_ms = draw_secret(), self._now_ms()

        def changed(known: TokenRecord) -> TokenRecord:
            if known.revoked_ms:
                raise Conflict(f"token {token_id} was revoked; create another")
            if known.expires_ms and known.expires_ms <= now_ms:
                raise Conflict(f"token {token_id} has expired; create another")
            if known.certificate is not None:
                raise Conflict(f"token {token_id} has no secret: replace its certificate")
            if grace_ms and now_ms < known.previous_until_ms:
                until = format_time_us(known.previous_until_ms * 1000)
                raise Conflict(
                    f"the secret of token {token_id} before its last rotation is valid until"
                    f" {until}: rotate again then, or with grace 0, which ends both at once"
                )
            return replace(
                known,
                digest=digest_of(secret),
                previous_digest=known.digest if grace_ms else "",
                previous_until_ms=now_ms + grace_ms if grace_ms else 0,
            )

        record = await self._change(token_id, changed)
        return NewSecret(record, format_token(token_id, secret))

    async def revoke(self, token_id: str) -> None:
        """Make a token invalid, at once and for good. Raises ``NotFound``."""
        now_ms = self._now_ms()
        await self._change(
            token_id, lambda known: known if known.revoked_ms else replace(known, revoked_ms=now_ms)
        )

    async def note_use(self, token_id: str) -> None:
        """Record that a token was used today; a failure loses only that."""
        day = self._now_ms() // DAY_MS
        try:
            await self._change(
                token_id,
                lambda known: (
                    known if known.last_used_day >= day else replace(known, last_used_day=day)
                ),
            )
        except GoqError:
            return

    async def _change(
        self, token_id: str, change: Callable[[TokenRecord], TokenRecord]
    ) -> TokenRecord:
        for attempt in range(_ATTEMPTS):
            known = self._store.tokens.get(token_id)
            if known is None:
                shown = without_secrets(token_id)[:50]
                raise NotFound(f"there is no token {shown!r}; goq token list shows all")
            changed = change(known)
            if changed is known:
                return known
            changed = replace(changed, version=known.version + 1)
            try:
                await self._store.put_token(changed)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            return changed
        raise AssertionError


def token_duration_ms(written: str | float, field: str) -> int:
    """Return how long a token or a secret is to be valid. Raises ``InvalidInput``."""
    duration_ms = parse_duration_ms(written, field=field)
    if not 0 <= duration_ms <= limits.TOKEN_LIFETIME_MS_MAX:
        raise InvalidInput(
            f"{field} is at most {limits.TOKEN_LIFETIME_MS_MAX // DAY_MS} days", field=field
        )
    return duration_ms


def lifetime_ms(expires: str | float | None) -> int:
    """Return how long a new token is to be valid, 0 for ever. Raises ``InvalidInput``."""
    if expires is None:
        return 0
    duration_ms = token_duration_ms(expires, "expires")
    if duration_ms == 0:
        raise InvalidInput("a token that expires at once is of no use", field="expires")
    return duration_ms


def new_token(
    name: str,
    rules: Sequence[str],
    now_ms: int,
    expires_in_ms: int = 0,
    certificate: str | None = None,
    quotas: Mapping[str, str | int] = NO_QUOTAS,
    *,
    aws: bool = False,
) -> NewSecret:
    """Return a new token that is stored nowhere yet; raise ``InvalidInput``."""
    check_name(name, "token", field="name")
    if not 1 <= len(rules) <= limits.TOKEN_RULES_MAX:
        raise InvalidInput(
            f"a token has 1 to {limits.TOKEN_RULES_MAX} rules, not {len(rules)}; a rule reads"
            " verb:topic or verb:topic/group, as publish:orders*",
            field="allow",
        )
    parsed = tuple(dict.fromkeys(str(parse_rule(text)) for text in rules)) + quota_texts(quotas)
    parsed += (AWS_MARK,) if aws else ()
    token_id, secret = draw_token_id(), draw_secret()
    expires_ms = now_ms + expires_in_ms if expires_in_ms else 0
    if certificate is not None:
        if aws:
            raise InvalidInput("a token of a certificate has no key pair", field="aws")
        if not _CERTIFICATE_NAME.fullmatch(certificate):
            raise InvalidInput(
                "the name of a certificate is its CN or a URI among its alternative names: 1 to"
                " 200 printable ASCII characters",
                field="cert",
            )
        digest = digest_of_certificate(certificate)
        return NewSecret(TokenRecord(token_id, name, digest, parsed, now_ms, expires_ms), "")
    record = TokenRecord(token_id, name, digest_of(secret), parsed, now_ms, expires_ms)
    return NewSecret(record, format_token(token_id, secret))
