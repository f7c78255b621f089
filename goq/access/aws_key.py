"""Key pairs of tokens for AWS SDKs: the token's id, and a secret derived from its stored digest.

An AWS signature is an HMAC, so the node must know the secret itself. Only tokens with the mark
``aws:key`` among their stored rules have one: the record of another token signs nothing. A version
that does not know the mark reads a rule that allows nothing.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final

from goq.access.token_record import TokenRecord

AWS_MARK: Final = "aws:key"
_PURPOSE: Final = b"goq aws key 1"


def aws_secret_of(digest: str) -> str:
    """Return the secret access key of a token by the digest of its secret."""
    key = hmac.digest(digest.encode(), _PURPOSE, "sha256")
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def has_aws_key(record: TokenRecord) -> bool:
    """Return whether a token has a key pair."""
    return AWS_MARK in record.rules


def key_digests(record: TokenRecord, now_ms: int) -> list[str]:
    """Return the digests that the secret access keys of a token come from.

    There are two while a rotated key is still valid, and none for a token without a key pair.
    """
    if not has_aws_key(record):
        return []
    digests = [record.digest]
    if record.previous_digest and now_ms < record.previous_until_ms:
        digests.append(record.previous_digest)
    return digests
