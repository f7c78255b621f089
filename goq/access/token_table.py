"""The principals of valid tokens.

The tokens come as an immutable mapping, which is replaced with each change. So a change counts from
the next request on. Texts that were found valid are remembered for one version of the mapping.

The token in the data folder's ``admin.token`` is a principal of this node alone. Other nodes know
it by an id with ``@``, which no other token has: a node that relays its requests proves itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from goq import limits
from goq.access.aws_key import aws_secret_of, key_digests
from goq.access.quota import parse_quotas
from goq.access.rule import AccessRule, Principal, Verb, parse_rule
from goq.access.token import split_token
from goq.access.token_record import TokenRecord, digest_of
from goq.errors import InvalidInput, NotAuthenticated

_LOCAL: Final = "admin@"
_ADMIN: Final = (AccessRule(Verb.ADMIN, "*"),)
_UNKNOWN: Final = "this node does not know the token"
_NEEDED: Final = (
    "this node asks for a token: goq --token-file FILE, GOQ_TOKEN_FILE, or the header"
    " Authorization: Bearer TOKEN"
)


class TokenTable:
    """Finds the principal of a token; ``tokens`` returns the records, ``now_ms`` the time."""

    def __init__(
        self, tokens: Callable[[], Mapping[str, TokenRecord]], now_ms: Callable[[], int]
    ) -> None:
        self._tokens = tokens
        self._now_ms = now_ms
        self._known: Mapping[str, TokenRecord] = {}
        self._principals: dict[tuple[str, str], Principal] = {}
        self._by_text: dict[str, Principal] = {}
        self._by_certificate: dict[str, list[TokenRecord]] = {}
        self._local: tuple[Principal, TokenRecord] | None = None

    def set_admin_token(self, node: str, text: str | None) -> bool:
        """Accept the token of this node's data folder, None for none; return whether it changed."""
        found = None if text is None else split_token(text)
        digest = None if found is None else digest_of(found[1])
        if digest == (None if self._local is None else self._local[1].digest):
            return False
        self._local = None
        if found is not None and digest is not None:
            principal = Principal(_LOCAL + node, "admin.token", _ADMIN, digest=digest)
            self._local = principal, TokenRecord(found[0], principal.name, digest, (), 0)
        return True

    def has_admin(self) -> bool:
        """Return whether a valid token may administer the tokens."""
        now_ms = self._now_ms()
        return any(
            rule.verb is Verb.ADMIN
            for record in self._tokens().values()
            if not record.ended_ms() or record.ended_ms() > now_ms
            for rule in _rules_of(record)
        )

    def find(
        self, text: str | None, certificate: Sequence[str] = (), *, is_local: bool
    ) -> Principal:
        """Return the principal of a token's text; ``is_local`` if its sender is on this machine.

        Without a text it is that of the newest valid token for a name in the ``certificate``.
        Raises ``NotAuthenticated``. The token of the data folder counts on this machine only.
        """
        tokens, now_ms = self._tokens(), self._now_ms()
        if tokens is not self._known:
            self._follow(tokens)
        known = None if text is None else self._by_text.get(text)
        if known is not None and (not known.expires_ms or now_ms < known.expires_ms):
            return known
        found = None if text is None else split_token(text)
        if text is None and certificate:
            return self._of_certificate(certificate, now_ms)
        if text is None:
            raise NotAuthenticated(_NEEDED)
        if found is None:
            raise NotAuthenticated(_UNKNOWN)
        token_id, digest = found[0], digest_of(found[1])
        local = self._local
        if local is not None and local[1].id == token_id:
            if not local[1].has_digest(digest, 0):
                raise NotAuthenticated(_UNKNOWN)
            if not is_local:
                raise NotAuthenticated("the token in admin.token counts on its own machine only")
            return local[0]
        record = tokens.get(token_id)
        if record is None or not record.has_digest(digest, now_ms):
            raise NotAuthenticated(_UNKNOWN)
        principal = self._valid(record, now_ms, digest)
        if not record.previous_digest:  # a secret that is valid for a grace is checked each time
            if len(self._by_text) >= limits.TOKENS_MAX:
                self._by_text.clear()
            self._by_text[text] = principal
        return principal

    def _of_certificate(self, names: Sequence[str], now_ms: int) -> Principal:
        records = [record for name in names for record in self._by_certificate.get(name, ())]
        for record in sorted(records, key=lambda record: -record.created_ms):
            if not record.ended_ms() or record.ended_ms() > now_ms:
                return self._valid(record, now_ms)
        shown = ", ".join(names)[:200]
        raise NotAuthenticated(
            f"no valid token is for the certificate {shown}: goq token create NAME --cert"
        )

    def named(self, principal_id: str) -> Principal:
        """Return the principal that a node of the cluster names; raise ``NotAuthenticated``."""
        if principal_id.startswith(_LOCAL):
            return Principal(principal_id, "admin.token", _ADMIN)
        tokens = self._tokens()
        if tokens is not self._known:
            self._follow(tokens)
        record = tokens.get(principal_id)
        if record is None:
            raise NotAuthenticated(_UNKNOWN)
        return self._valid(record, self._now_ms())

    def signers(self, token_id: str) -> dict[str, Principal]:
        """Return the secret access keys of a token, each with the principal of its requests.

        There is none for a token without a key pair. Raises ``NotAuthenticated`` for one that has
        ended.
        """
        tokens, now_ms = self._tokens(), self._now_ms()
        if tokens is not self._known:
            self._follow(tokens)
        record = tokens.get(token_id)
        if record is None:
            return {}
        return {
            aws_secret_of(digest): self._valid(record, now_ms, digest)
            for digest in key_digests(record, now_ms)
        }

    def is_valid(self, principal: Principal) -> bool:
        """Return whether a principal's token is still valid, with the same rules, and the secret
        that it was found by too.

        The token of another node's data folder is, for all requests that it has begun.
        """
        if principal.id.startswith(_LOCAL):
            local = self._local
            return not principal.digest or (local is not None and local[0] is principal)
        now_ms, tokens = self._now_ms(), self._tokens()
        if tokens is not self._known:
            self._follow(tokens)
        record = tokens.get(principal.id)
        if record is None or (principal.digest and not record.has_digest(principal.digest, now_ms)):
            return False
        try:
            return self._valid(record, now_ms, principal.digest) is principal
        except NotAuthenticated:
            return False

    def is_known(self, principal_id: str) -> bool:
        """Return whether there is such a principal, valid or not."""
        return principal_id.startswith(_LOCAL) or principal_id in self._tokens()

    def _follow(self, tokens: Mapping[str, TokenRecord]) -> None:
        """Keep the principals that another version of the tokens has with the same rules."""
        self._known = tokens
        self._by_text.clear()
        self._by_certificate = {}
        for record in tokens.values():
            if record.certificate is not None:
                self._by_certificate.setdefault(record.certificate, []).append(record)
        self._principals = {
            key: known
            for key, known in self._principals.items()
            if (now := tokens.get(known.id)) is not None and _is_of(known, now)
        }

    def _valid(self, record: TokenRecord, now_ms: int, digest: str = "") -> Principal:
        """Return the principal of a valid token, which showed a secret unless ``digest`` is empty.

        Raises ``NotAuthenticated``.
        """
        if record.revoked_ms:
            raise NotAuthenticated(f"token {record.id} was revoked")
        if record.expires_ms and record.expires_ms <= now_ms:
            raise NotAuthenticated(f"token {record.id} has expired")
        principal = self._principals.get((record.id, digest))
        if principal is None:
            principal = Principal(
                record.id,
                record.name,
                _rules_of(record),
                record.expires_ms,
                record.rules,
                parse_quotas(record.rules),
                digest,
            )
            self._principals[record.id, digest] = principal
        return principal


def _is_of(principal: Principal, record: TokenRecord) -> bool:
    """Return whether a principal says what a record says."""
    digests = ("", record.digest, record.previous_digest)
    same = principal.expires_ms == record.expires_ms and principal.texts == record.rules
    return same and principal.digest in digests


def _rules_of(record: TokenRecord) -> list[AccessRule]:
    """Return the rules that this version of goq can read; another one allows nothing."""
    rules = []
    for text in record.rules:
        try:
            rules.append(parse_rule(text))
        except InvalidInput:
            continue
    return rules
