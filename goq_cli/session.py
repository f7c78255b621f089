"""The global options of one run of ``goq``: the server, the token, JSON or not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from goq.errors import UsageError

if TYPE_CHECKING:
    from goq.client import Client
    from goq.client.retry import OnRetry


ClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id", metavar="NAME", help="Name in traces; default GOQ_CLIENT_ID, else host-pid."
    ),
]
RetryFor = Annotated[
    str | None,
    typer.Option(
        "--retry-for",
        metavar="D|forever",
        help="How long to wait for a node; default GOQ_RETRY_FOR, else forever.",
    ),
]
DEFAULT_SERVER = "http://127.0.0.1:8080"


@dataclass(slots=True)
class Session:
    """The global options of one run.

    ``repeated`` are those as given that another run of the command needs, without secrets.
    """

    servers: list[str] = field(default_factory=list)
    token: str | None = None
    token_file: str | None = None
    json: bool = False
    context: str | None = None
    repeated: list[str] = field(default_factory=list)

    def client(self, client_id: str | None = None) -> Client:
        """Return a client of the chosen server for one answer; a context manager.

        Its name is ``client_id``, else ``GOQ_CLIENT_ID``, else host and process id. It gives up
        after a second where nothing listens.
        """
        bound = _wait_for_node(None)
        return self._client(client_id, bound or "10s", bound or "1s")

    def long_client(self) -> Client:
        """Return a client for work that takes long: a node may be restarted meanwhile."""
        bound = _wait_for_node(None) or "10s"
        return self._client(None, bound, bound)

    def lasting_client(
        self,
        client_id: str | None,
        retry_for: str | None,
        is_over: Callable[[], bool],
        *,
        tells_once: bool = False,
    ) -> Client:
        """Return a client that waits for a node, and says so; ``retry_for`` bounds the wait.

        It stops waiting when ``is_over``.
        """
        from goq.client.arguments import FOREVER
        from goq_cli.output.retry_notice import RetryNotice

        bound = _wait_for_node(retry_for) or FOREVER
        notice = RetryNotice(self.servers_and_token()[0], is_over, is_once=tells_once)
        return self._client(client_id, bound, bound, notice)

    def patient_client(self, on_retry: OnRetry) -> Client:
        """Return a client that waits for a node for as long as ``on_retry`` wants."""
        from goq.client.arguments import FOREVER

        return self._client(None, FOREVER, FOREVER, on_retry)

    def _client(
        self, client_id: str | None, retries: str, connect: str, on_retry: OnRetry | None = None
    ) -> Client:
        from goq.client import Client

        servers, token = self.servers_and_token()
        if client_id is None:
            client_id = os.environ.get("GOQ_CLIENT_ID") or None
        return Client(
            servers,
            token=token,
            client_id=client_id,
            retries=retries,
            connect_retries=connect,
            on_retry=on_retry,
        )

    def own_token(self) -> str | None:
        """Return the token from options or the environment; raise ``UsageError``."""
        if self.token:
            return self.token
        if self.token_file:
            return _read_token(self.token_file)
        if token := os.environ.get("GOQ_TOKEN"):
            return token
        path = os.environ.get("GOQ_TOKEN_FILE")
        return _read_token(path) if path else None

    def servers_and_token(self) -> tuple[list[str], str | None]:
        """Return the servers and the token: from options, environment, context, or the default."""
        from goq_cli.contexts import current_context, named_context

        servers, token = self.servers, self.own_token()
        if not servers and self.context is not None:
            context = named_context(self.context)
            servers, token = context.servers, token or context.token
        if not servers and (from_environment := os.environ.get("GOQ_SERVER")):
            servers = from_environment.split(",")
        if not servers and (current := current_context()):
            servers, token = current.servers, token or current.token
        return [url_of(server) for server in servers] or [DEFAULT_SERVER], token


def _wait_for_node(option: str | None) -> str | None:
    """Return how long to wait for a node, as ``--retry-for`` or the environment say; else None."""
    from goq.client.arguments import FOREVER
    from goq.units import parse_duration_ms

    name = "--retry-for" if option else "GOQ_RETRY_FOR"
    bound = option or os.environ.get(name) or None
    if bound is not None and bound != FOREVER:
        parse_duration_ms(bound, field=name)
    return bound


def url_of(server: str) -> str:
    """Return the URL of a server that may be written as ``host:port``."""
    return server if "://" in server else f"http://{server}"


SESSION = Session()


def node_time_us(client: Client, topics: Sequence[str]) -> int:
    """Return the node's time, as descriptions of topics tell it; else this machine's.

    Raises ``TopicNotFound``.
    """
    times = [client.describe_topic(topic).time for topic in topics]
    now = next(filter(None, times), None)
    return time.time_ns() // 1000 if now is None else round(now.timestamp() * 1_000_000)


_FILES = {
    "--ca-file": "GOQ_CA_FILE",
    "--cert-file": "GOQ_CERT_FILE",
    "--key-file": "GOQ_KEY_FILE",
}


def take_global_options(arguments: list[str]) -> list[str]:
    """Move global options into :data:`SESSION`; return the other arguments.

    Raises ``UsageError`` for an option without its value.
    """
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif word == "--json":
            SESSION.json = True
        elif name in ("--server", "--token", "--token-file", "--context", *_FILES):
            if not equals:
                value = next(words, "")
            if not value:
                raise UsageError(f"{name} needs a value")
            if name != "--token":
                SESSION.repeated += [name, value]
            if name == "--server":
                SESSION.servers.append(value)
            elif name in _FILES:
                os.environ[_FILES[name]] = value  # for this process and those that it starts
            elif name == "--token":
                SESSION.token = value
            elif name == "--token-file":
                SESSION.token_file = value
            else:
                SESSION.context = value
        else:
            rest.append(word)
    return rest


def _read_token(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token in {path}: {error}") from None


@contextmanager
def needs_extra(extra: str) -> Generator[None, None, None]:
    """Turn a failed import into a ``UsageError`` with what to install."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"this needs {error.name}, which is not installed: pip install 'goq[{extra}]'"
        ) from None
