"""Looks at ports of other nodes: what is there now, not what their last registration says."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from goq import limits
from goq.cluster.controller import port_probe
from goq.cluster.controller.port_probe import is_port_closed, may_speak_its_scheme
from tests.support.cluster.authority import Authority, needs_openssl
from tests.support.node.ports import HOST


def test_a_port_that_nobody_listens_on_is_told_from_one_that_is_slow_to_answer() -> None:
    with socket.socket() as deaf, socket.socket() as slow:
        deaf.bind((HOST, 0))
        slow.bind((HOST, 0))
        slow.listen()
        assert asyncio.run(is_port_closed(f"http://{HOST}:{deaf.getsockname()[1]}"))
        assert not asyncio.run(is_port_closed(f"http://{HOST}:{slow.getsockname()[1]}"))


@needs_openssl
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_server_speaks_one_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_tls: bool
) -> None:
    monkeypatch.setattr(port_probe, "_TIMEOUT_S", 60.0)  # no answer in time would be another one
    context = None
    if has_tls:
        cert, key = Authority(tmp_path / "ca").sign("node", f"IP:{HOST}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def schemes() -> set[str]:
        server = await asyncio.start_server(answer, HOST, 0, ssl=context)
        async with server:
            at = f"{HOST}:{server.sockets[0].getsockname()[1]}"
            return {
                each for each in ("http", "https") if await may_speak_its_scheme(f"{each}://{at}")
            }

    assert asyncio.run(schemes()) == {"https" if has_tls else "http"}


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_closed_port_speaks_nothing_and_a_slow_one_may_speak(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_probe, "_TIMEOUT_S", limits.NODE_SESSION_TIMEOUT_MS / 10_000)
    with socket.socket() as deaf, socket.socket() as slow:
        deaf.bind((HOST, 0))
        slow.bind((HOST, 0))
        slow.listen()
        at = f"{scheme}://{HOST}:"
        assert not asyncio.run(may_speak_its_scheme(f"{at}{deaf.getsockname()[1]}"))
        assert asyncio.run(may_speak_its_scheme(f"{at}{slow.getsockname()[1]}"))


@pytest.mark.parametrize("turns", range(4))
def test_a_look_that_is_cancelled_as_its_answer_arrives_ends_its_task(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        answered = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(port_probe, "_speaks_its_scheme", lambda _url: answered)
        look = asyncio.create_task(may_speak_its_scheme("http://n2"))
        await asyncio.sleep(0)
        answered.set_result(True)
        for _ in range(turns):
            await asyncio.sleep(0)
        if not look.done():
            look.cancel()
            with pytest.raises(asyncio.CancelledError):
                await look

    asyncio.run(scenario())
