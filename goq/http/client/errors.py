"""Errors of the HTTP client: why a request got no whole answer.

::

    TransportError
      ConnectError            no connection: nothing was sent
        ConnectTimeout
        TlsError              the server is not trusted, or speaks no TLS
      PoolTimeout             every connection stayed in use: nothing was sent
      WriteError              the request was not sent whole
      ReadError               the connection ended before the end of the answer
        ProtocolError         what came is no HTTP answer, or only a part of one
          NoAnswer            nothing came
      ExchangeTimeout
        WriteTimeout
        ReadTimeout
"""

from __future__ import annotations


class TransportError(Exception):
    """A request got no whole answer."""


class ConnectError(TransportError):
    """There is no connection to the server."""


class ConnectTimeout(ConnectError):
    """The connection was not there in time."""


class TlsError(ConnectError):
    """The server has no certificate that the client trusts, or speaks no TLS."""


class PoolTimeout(TransportError):
    """No connection became free in time."""


class WriteError(TransportError):
    """The connection ended while the request was sent."""


class ReadError(TransportError):
    """The connection ended before the end of the answer."""


class ProtocolError(ReadError):
    """The bytes are no HTTP answer, or end inside of one."""


class NoAnswer(ProtocolError):
    """The server closed the connection before the first byte of an answer."""


class ExchangeTimeout(TransportError):
    """The server was too slow after the connection was made."""


class WriteTimeout(ExchangeTimeout):
    """The server did not take the request in time."""


class ReadTimeout(ExchangeTimeout):
    """The server did not answer in time."""


def connect_error(error: OSError) -> ConnectError:
    """Return the error for a connection that was not made."""
    import ssl  # only few clients need it

    if isinstance(error, ssl.SSLError):
        return TlsError(getattr(error, "verify_message", "") or str(error))
    return ConnectError(error.strerror or str(error))
