"""The authorities that a client trusts."""

from __future__ import annotations

import ssl

from goq.errors import InvalidInput


def trusting(ca_file: str) -> ssl.SSLContext:
    """Return a context that trusts the authorities in a PEM file alone, and verifies host names.

    Raises ``InvalidInput`` if the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"the authorities in {ca_file} cannot be used: {error}", field="ca_file"
        ) from None
