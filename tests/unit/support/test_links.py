"""The proxy between nodes does to connections what each kind of cut says."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.cluster.links import CLIENT, Closed, Cut, Links, Port
from tests.support.node.ports import HOST

NODE, OTHER = "n1", "n2"
SOON_S, SILENCE_S = 20.0, 0.3


@pytest.fixture
def echo() -> Iterator[int]:
    """Run a server that sends back what it gets; yield its port."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection:
                try:
                    while piece := connection.recv(1000):
                        connection.sendall(piece)
                except OSError:
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def links() -> Iterator[Links]:
    """Yield links of a node that is this process, and of another that does not run."""
    with Links(lambda name: os.getpid() if name == NODE else None) as links:
        links.before(NODE, Port.HTTP, 1)
        yield links


def connected(port: int, seconds: float = SOON_S) -> socket.socket:
    return socket.create_connection((HOST, port), seconds)


def echoed(connection: socket.socket, sent: bytes) -> bytes:
    connection.sendall(sent)
    return connection.recv(1000)


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_S)
    try:
        connection.recv(1000)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(SOON_S)
    return False


@pytest.mark.parametrize("direction", [(NODE, OTHER), (OTHER, NODE)])
def test_what_is_sent_over_a_late_link_comes_when_it_is_mended(
    links: Links, echo: int, direction: tuple[str, str]
) -> None:
    port = links.before(OTHER, Port.HTTP, echo)
    with connected(port) as before:
        assert echoed(before, b"1") == b"1"
        links.cut(*direction)
        with connected(port) as during:
            before.sendall(b"2")
            during.sendall(b"3")
            assert is_silent(before)
            assert is_silent(during)
            links.mend()
            assert before.recv(1000) == b"2"
            assert during.recv(1000) == b"3"


def test_what_is_sent_over_a_lossy_link_vanishes_and_mending_resets_the_connection(
    links: Links, echo: int
) -> None:
    port = links.before(OTHER, Port.HTTP, echo)
    with connected(port) as before, connected(port) as idle:
        assert echoed(before, b"1") == b"1"
        assert echoed(idle, b"1") == b"1"
        links.cut(NODE, OTHER, how=Cut.LOST)
        before.sendall(b"2")
        assert is_silent(before)
        links.mend()
        with pytest.raises(ConnectionResetError):
            before.recv(1000)
        assert echoed(idle, b"3") == b"3"  # it has lost nothing


def test_a_link_that_resets_ends_open_and_new_connections(links: Links, echo: int) -> None:
    port = links.before(OTHER, Port.HTTP, echo)
    with connected(port) as before:
        assert echoed(before, b"1") == b"1"
        links.cut_both(NODE, OTHER, how=Cut.RESET)
        with pytest.raises(ConnectionResetError):
            before.recv(1000)
        with pytest.raises(ConnectionResetError), connected(port) as during:
            echoed(during, b"2")
    links.mend()
    with connected(port) as after:
        assert echoed(after, b"3") == b"3"


def test_a_cut_concerns_one_source_and_one_kind_of_port(links: Links, echo: int) -> None:
    http, raft = (links.before(OTHER, kind, echo) for kind in Port)
    links.cut_both(CLIENT, OTHER)
    links.cut_both(NODE, OTHER, Port.RAFT)
    with connected(http) as connection:
        assert echoed(connection, b"1") == b"1"
    with connected(raft) as connection:
        connection.sendall(b"2")
        assert is_silent(connection)


def test_a_refusing_port_refuses_until_it_is_mended(links: Links, echo: int) -> None:
    port = links.before(OTHER, Port.HTTP, echo)
    with connected(port) as before:
        assert echoed(before, b"1") == b"1"
        links.close(OTHER, Port.HTTP)
        with pytest.raises(ConnectionResetError):
            before.recv(1000)
    with pytest.raises(ConnectionRefusedError):
        connected(port)
    links.mend()
    with connected(port) as after:
        assert echoed(after, b"2") == b"2"


def test_a_silent_port_answers_no_connect_until_it_is_mended(links: Links, echo: int) -> None:
    port = links.before(OTHER, Port.HTTP, echo)
    links.close(OTHER, Port.HTTP, Closed.SILENT)
    with pytest.raises(TimeoutError):
        connected(port, SILENCE_S)
    links.mend()
    with connected(port) as after:
        assert echoed(after, b"1") == b"1"
