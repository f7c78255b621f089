"""TLS between members, with certificates of the cluster's authority that name the member's id."""

from __future__ import annotations

import ssl
from pathlib import Path

from goq.cluster.raft.transport.link import Credentials
from goq.errors import UsageError


def tls_credentials(secret: bytes, authority: Path, certificate: Path, key: Path) -> Credentials:
    """Return credentials with TLS 1.3 around the connections; all files are PEM.

    The certificate must name the member's id as a DNS name, and be valid for servers and clients.
    Raises ``UsageError`` for files that cannot be used.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the cluster's certificates cannot be used: {error}; check {authority},"
                f" {certificate} and {key}"
            ) from None
    return Credentials(secret, server, client)
