"""TLS of a client: the authorities that it trusts, and its own certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from goq.errors import InvalidInput

if TYPE_CHECKING:
    import ssl


class ClientTls(NamedTuple):
    """PEM files: the authorities of servers, by default the public ones; and a certificate with
    its key, by default in the same file, by default none."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies servers and their names.

        Raises ``InvalidInput`` if a file cannot be used.
        """
        import ssl

        import certifi

        try:
            context = ssl.create_default_context(cafile=self.ca_file or certifi.where())
            context.set_alpn_protocols(["http/1.1"])
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(
                f"the authorities in {self.ca_file} cannot be used: {error}", field="ca_file"
            ) from None
        if self.cert_file is None:
            if self.key_file is not None:
                raise InvalidInput("a key is of no use without its certificate", field="key_file")
            return context
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_refuse_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidInput(
                f"the certificate in {self.cert_file} cannot be used: {error}", field="cert_file"
            ) from None
        return context


def _refuse_password() -> str:
    """Keep OpenSSL from asking for a password on the terminal."""
    raise ValueError("the key has a password")
