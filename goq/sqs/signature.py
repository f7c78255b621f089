"""AWS Signature Version 4: who sent a request, by the key pair of a token.

The signature covers the headers that it names and the body. It must name the host, the time and the
operation. A request may be 15 minutes older or newer than the node's clock, and may be repeated in
that time, as at AWS.
"""

from __future__ import annotations

import hmac
import re
from calendar import timegm
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from time import monotonic, strptime
from typing import Final, NamedTuple
from urllib.parse import quote

from goq.access.quota_table import QuotaTable
from goq.access.rule import Principal
from goq.access.token_table import TokenTable
from goq.errors import NotAuthenticated, TooManyRequests
from goq.http.message import Request
from goq.sqs.protocol.errors import SqsError

SKEW_S_MAX: Final = 900
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_AUTHORIZATION: Final = re.compile(
    rf"{_ALGORITHM}\s+Credential=([A-Za-z0-9]{{1,128}})/(\d{{8}})/([a-z0-9-]{{1,64}})/sqs/aws4_request,"
    r"\s*SignedHeaders=([a-z0-9;._-]{1,2000}),\s*Signature=([0-9a-f]{64})",
    re.ASCII,
)
_DATE: Final = "x-amz-date"
_TIME: Final = "%Y%m%dT%H%M%SZ"
_MUST_BE_SIGNED: Final = ("host", _DATE, "x-amz-target")
_SPACES: Final = re.compile(" +")
_PUBLISHING: Final = frozenset(("SendMessage", "SendMessageBatch"))


class SignedWith(NamedTuple):
    """The content of an ``Authorization`` header."""

    key_id: str
    date: str
    region: str
    headers: list[str]
    signature: str


class SignatureCheck:
    """Finds the principal of a signed request, and counts the request against its quotas."""

    def __init__(
        self,
        tokens: TokenTable,
        quotas: QuotaTable,
        now_ms: Callable[[], int],
        on_use: Callable[[str], None],
        hold: Callable[[Request, str], None],
    ) -> None:
        """``on_use`` is called with the id of each token that signed a request, ``hold`` with each
        request that is refused and its sender.
        """
        self._hold = hold
        self._tokens = tokens
        self._quotas = quotas
        self._now_ms = now_ms
        self._on_use = on_use

    def check_head(self, request: Request, *, is_large: bool) -> None:
        """Check the key of a request whose body has not been read: the signature covers the body.

        Notes a refusal. Raises ``SqsError``: ``RequestThrottled`` if the body is large and a quota
        is used up.
        """
        try:
            principal, *_ = self._signers(_parsed(request).key_id).values()
        except SqsError as error:
            self._note_refusal(request, error)
            raise
        if is_large:
            try:
                self._quotas.check(principal, monotonic())
            except TooManyRequests as error:
                raise self._throttled(request, principal, error) from error

    def principal(self, request: Request, operation: str) -> Principal:
        """Return the principal that signed a request; note the refusal of one without.

        Raises ``SqsError``.
        """
        try:
            principal = self._signed_by(request)
        except SqsError as error:
            self._note_refusal(request, error)
            raise
        self._on_use(principal.id)
        try:
            size_bytes = len(request.body) if operation in _PUBLISHING else None
            self._quotas.admit(principal, size_bytes, monotonic())
        except TooManyRequests as error:
            raise self._throttled(request, principal, error) from error
        return principal

    def _note_refusal(self, request: Request, error: SqsError) -> None:
        request.refusal = NotAuthenticated(error.message)
        self._hold(request, request.peer_host)

    def _throttled(
        self, request: Request, principal: Principal, error: TooManyRequests
    ) -> SqsError:
        self._hold(request, principal.id)
        return SqsError("RequestThrottled", error.detail)

    def _signed_by(self, request: Request) -> Principal:
        signed = _parsed(request)
        self._check_time(request, signed)
        signers = self._signers(signed.key_id)
        text = _text_to_sign(request, signed)
        for secret, principal in signers.items():
            if _is_signature(signed, text, secret):
                return principal
        raise SqsError(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided."
            " Check the secret access key, and that no proxy changes the host: set sqs.hosts"
            " and have it pass on the host that clients call.",
            403,
        )

    def _signers(self, key_id: str) -> dict[str, Principal]:
        """Return the principals by their secret access keys, at least one. Raises ``SqsError``."""
        try:
            signers = self._tokens.signers(key_id)
        except NotAuthenticated as error:
            raise SqsError("InvalidClientTokenId", error.detail, 403) from None
        if signers:
            return signers
        raise SqsError(
            "InvalidClientTokenId",
            "The security token included in the request is invalid: it is not that of a token with"
            " a key pair, which goq token create NAME --aws makes.",
            403,
        )

    def _check_time(self, request: Request, signed: SignedWith) -> None:
        text = request.headers.get(_DATE, "")
        try:
            sent_s = timegm(strptime(text, _TIME))
        except ValueError:
            raise _incomplete(f"{_DATE} is not a time as 20250115T103000Z") from None
        is_near = abs(self._now_ms() / 1000 - sent_s) <= SKEW_S_MAX
        if not is_near or signed.date != text[:8]:
            raise SqsError(
                "SignatureDoesNotMatch",
                f"Signature expired: {text} is not within 15 minutes of the node's clock.",
                403,
            )


def _parsed(request: Request) -> SignedWith:
    text = request.headers.get("authorization", "")
    if not text:
        raise SqsError(
            "MissingAuthenticationToken", "The request has no Authorization header.", 403
        )
    match = _AUTHORIZATION.fullmatch(text.strip())
    if match is None:
        raise _incomplete(f"Authorization is not {_ALGORITHM} of a key for sqs")
    key_id, date, region, names, signature = match.groups()
    headers = names.split(";")
    for name in _MUST_BE_SIGNED:
        if name in request.headers and name not in headers:
            raise _incomplete(f"{name} is not signed")
    if any(name not in request.headers for name in headers):
        raise _incomplete("a header that is signed is not there")
    return SignedWith(key_id, date, region, headers, signature)


def _incomplete(why: str) -> SqsError:
    return SqsError("IncompleteSignature", f"The signature cannot be checked: {why}.")


def _text_to_sign(request: Request, signed: SignedWith) -> bytes:
    lines = [f"{name}:{_SPACES.sub(' ', request.headers[name].strip())}" for name in signed.headers]
    canonical = "\n".join(
        (
            request.method,
            quote(request.path, safe="/~"),
            "&".join(sorted(request.query_string.split("&"))),
            *lines,
            "",
            ";".join(signed.headers),
            sha256(request.body).hexdigest(),
        )
    )
    scope = f"{signed.date}/{signed.region}/sqs/aws4_request"
    digest = sha256(canonical.encode("latin-1", "replace")).hexdigest()
    return f"{_ALGORITHM}\n{request.headers[_DATE]}\n{scope}\n{digest}".encode()


def _is_signature(signed: SignedWith, text: bytes, secret: str) -> bool:
    key = _signing_key(secret, signed.date, signed.region)
    return hmac.compare_digest(hmac.digest(key, text, "sha256").hex(), signed.signature)


@lru_cache(maxsize=256)
def _signing_key(secret: str, date: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, "sqs", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
