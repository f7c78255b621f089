"""Looks at the port of another node's URL: whether it is closed, and whether it speaks the scheme.

A look needs no secret and no certificate. It tells what is at a URL now, which the metadata, the
node's last registration, may no longer say.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

from goq import limits

_TIMEOUT_S = limits.NODE_SESSION_TIMEOUT_MS / 1000
_REQUEST = b"GET /v1/livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def is_port_closed(url: str) -> bool:
    """Whether the machine of a URL is reachable and refuses connections to its port."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


async def may_speak_its_scheme(url: str) -> bool:
    """Whether a server may answer at a URL by the URL's scheme.

    False if that is certain: the port refuses connections, or speaks HTTP for ``https``, or TLS for
    ``http``. True without an answer in time: the server may be slow.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await _speaks_its_scheme(url)
    except TimeoutError:
        return True
    except OSError:  # refused, reset, or no TLS
        return False


async def _speaks_its_scheme(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
        writer.close()
        return True
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(_REQUEST)
        return (await reader.read(5)).startswith(b"HTTP/")
    finally:
        writer.close()
