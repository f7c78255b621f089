"""The HTTP servers of a node: of its API, and of the SQS-compatible endpoint if it has one.

Both have the certificate of the node, which is loaded again when its files change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from goq import limits
from goq.access.token_table import TokenTable
from goq.api.app import App
from goq.api.codec.problem import problem_response
from goq.api.metrics.request_spans import RequestSpans
from goq.broker.broker import Broker
from goq.config.node import Config
from goq.errors import UsageError
from goq.http.context import HttpLimits
from goq.http.message import CreateProtocol
from goq.http.server import HttpServer, check_bindable
from goq.http.tls.server_certificate import ServerCertificate
from goq.storage.disk.open_files import connections_max

if TYPE_CHECKING:
    from goq.sqs.app import SqsApp


class Listeners:
    """The servers of one node; :meth:`close` them also if a start fails midway."""

    def __init__(self, config: Config, spans: RequestSpans | None = None) -> None:
        self.certificate: ServerCertificate | None = None
        self._config = config
        self._spans = spans
        self._server: HttpServer | None = None
        self._sqs_server: HttpServer | None = None
        self._sqs: SqsApp | None = None
        self._certificate_monitor: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The address of the API."""
        return self._url_of(self._server)

    @property
    def sqs_url(self) -> str | None:
        """The address of the SQS-compatible endpoint, None without one."""
        return None if self._sqs_server is None else self._url_of(self._sqs_server)

    def _url_of(self, server: HttpServer | None) -> str:
        assert server is not None
        host, port = server.addresses[0]
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def load_certificate(self) -> None:
        """Load the certificate, if the node has one. Raises ``UsageError``."""
        tls = self._config.security.tls
        if tls is not None:
            certificate = ServerCertificate(tls.cert_file, tls.key_file, tls.client_ca_file)
            self.certificate = certificate if self._config.speaks_https else None

    def check_addresses(self) -> None:
        """Raise ``UsageError`` for an address that cannot be bound, before the folder is used."""
        config = self._config
        addresses = [(config.broker.host, config.broker.port, "broker")]
        if config.sqs.listen is not None:
            addresses.append((*config.sqs.address, "sqs"))
        if config.cluster.is_member:
            addresses.append((*config.cluster.address, "cluster"))
        for host, port, section in addresses:
            try:
                check_bindable(host, port)
            except OSError as error:
                raise _cannot_listen(f"{host}:{port}", error, section) from None

    async def start(
        self,
        app: App,
        broker: Broker,
        tokens: TokenTable | None,
        upgrades: dict[str, CreateProtocol],
    ) -> None:
        """Listen. ``upgrades`` are the protocols that connections to the API may change to."""
        if self._config.sqs.listen is not None:  # before the node is ready
            self._sqs_server = await self._listen_for_sqs(app, broker, tokens)
        self._server = await self._listen(app, broker, tokens, upgrades)
        if self.certificate is not None:
            monitor = self._watch_certificate(self.certificate)
            self._certificate_monitor = asyncio.ensure_future(monitor)

    async def _listen(
        self,
        app: App,
        broker: Broker,
        tokens: TokenTable | None,
        upgrades: dict[str, CreateProtocol],
    ) -> HttpServer:
        config = self._config
        server = HttpServer(
            app.handle if self._spans is None else self._spans.traced(app.handle),
            lambda error, _headers: problem_response(error),
            HttpLimits(connections_max=connections_max()),
            config.host_names,
            app.failures,
            app.check_head if tokens is not None else None,
            upgrades,
        )
        app.metrics.server = server
        broker.commit_turn.on_inline_write = server.loop_watch.note_journal
        await self._start_server(server, config.broker.host, config.broker.port, "broker")
        return server

    async def _listen_for_sqs(
        self, app: App, broker: Broker, tokens: TokenTable | None
    ) -> HttpServer:
        from goq.sqs.app import SqsApp  # most nodes have no such endpoint
        from goq.sqs.signature import SignatureCheck

        config = self._config.sqs
        access, signatures = app.access, None
        if tokens is not None and access is not None:
            signatures = SignatureCheck(
                tokens, access.quotas, broker.clock.wall_ms, access.note_use, access.hold
            )
        sqs = self._sqs = SqsApp(
            broker,
            app.handle,
            config,
            lambda: self.sqs_url or "",
            self._config.broker.node_id,
            signatures,
            app.audit,
        )
        server = HttpServer(
            sqs.handle,
            sqs.on_error,
            HttpLimits(connections_max=connections_max(), body_bytes_max=config.body_bytes_max),
            self._config.sqs_host_names,
            app.failures,
            None if signatures is None else sqs.check_head,
        )
        await self._start_server(server, *config.address, "sqs")
        return server

    async def _start_server(self, server: HttpServer, host: str, port: int, section: str) -> None:
        certificate = self.certificate
        tls = None if certificate is None else lambda: certificate.context
        try:
            await server.start(host, port, tls)
        except OSError as error:
            raise _cannot_listen(f"{host}:{port}", error, section) from None

    async def _watch_certificate(self, certificate: ServerCertificate) -> None:
        """Load the certificate again when its files have changed."""
        while True:
            await asyncio.sleep(limits.CERTIFICATE_CHECK_S)
            certificate.reload_if_changed()

    def allow_hosts(self, config: Config) -> None:
        """Take over the names of hosts of a changed configuration."""
        self._config = config
        if self._server is not None:
            self._server.allow_hosts(config.host_names)
        if self._sqs_server is not None:
            self._sqs_server.allow_hosts(config.sqs_host_names)

    def requests_under_way(self) -> list[str]:
        """Return the requests that are not answered yet, for a log."""
        return [each for server in self._servers() for each in server.requests_under_way()]

    def _servers(self) -> list[HttpServer]:
        return [each for each in (self._server, self._sqs_server) if each is not None]

    async def stop_sqs(self) -> None:
        """End what the SQS-compatible endpoint does by itself."""
        if self._sqs is not None:
            await self._sqs.stop()

    async def close(self, timeout_ms: int) -> None:
        """Answer the requests in flight for at most ``timeout_ms``, then listen no more."""
        servers = self._servers()
        for each in servers:
            each.begin_drain()  # before a waiting request is answered: it closes its connection
        await asyncio.gather(*(each.drain(timeout_ms) for each in servers))
        self._server = self._sqs_server = None
        if self._certificate_monitor is not None:
            self._certificate_monitor.cancel()
            await asyncio.gather(self._certificate_monitor, return_exceptions=True)
            self._certificate_monitor = None


def _cannot_listen(address: str, error: OSError, section: str) -> UsageError:
    return UsageError(
        f"cannot listen on {address}: {error.strerror or error}", field=f"{section}.listen"
    )
