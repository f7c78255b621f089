"""The watch for secrets finds those that are planted, so that its silence says something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from goq.access.token import draw_secret, draw_token_id, format_token
from goq.http.message import Item, LiveStream, Request, Response
from goq.http.server import HttpServer
from tests.support.api.secret_watch import WATCH, SecretWatch
from tests.support.broker.harness import run


class Planted:
    def __init__(self, data_dir: Path) -> None:
        self.watch = SecretWatch()
        self.secret = draw_secret()
        self.token = format_token(draw_token_id(), self.secret)
        self.data_dir = data_dir
        assert self.watch.note_request({"Authorization": f"Bearer {self.token}"}) == self.secret


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path)


def test_a_secret_in_an_answer_fails(planted: Planted) -> None:
    planted.watch.check_answer(planted.secret, {"a": "b"}, b"fine")
    with pytest.raises(AssertionError, match="headers"):
        planted.watch.check_answer(planted.secret, {"location": f"/{planted.secret}"}, b"")
    with pytest.raises(AssertionError, match="answer"):
        planted.watch.check_answer(planted.secret, {}, f'"{planted.secret}"'.encode())


def test_a_secret_in_the_log_fails(planted: Planted) -> None:
    logger = logging.Logger("planted")
    logger.addHandler(planted.watch)
    logger.warning("a request failed")
    planted.watch.check_node(planted.data_dir)
    for text in (planted.secret, format_token("other", draw_secret())):
        logger.warning("refused %s", text)
        with pytest.raises(AssertionError, match="log"):
            planted.watch.check_node(planted.data_dir)


def test_a_secret_in_the_data_folder_fails_but_in_its_own_file(planted: Planted) -> None:
    (planted.data_dir / "admin.token").write_text(planted.token)
    planted.watch.check_node(planted.data_dir)
    (planted.data_dir / "topics").mkdir()
    (planted.data_dir / "topics" / "log").write_bytes(b"\0" + planted.secret.encode())
    with pytest.raises(AssertionError, match="topics/log"):
        planted.watch.check_node(planted.data_dir)


def test_a_token_in_what_a_command_prints_fails_but_for_one_that_makes_it(
    planted: Planted,
) -> None:
    printed = f"{planted.token}\n".encode()
    planted.watch.check_command(["token", "create", "shop"], printed)
    with pytest.raises(AssertionError, match="printed a secret"):
        planted.watch.check_command(["topic", "list"], printed)


def test_whatever_a_node_sends_passes_the_watch(planted: Planted) -> None:
    """Also to clients that are none of the tests' own, and in streams."""

    async def stream() -> AsyncGenerator[Item, None]:
        yield b"an item"
        yield [b"of parts, ", planted.token.encode()]

    async def answer_to(path: bytes) -> None:
        def handle(request: Request) -> Response:
            if request.path == "/stream":
                return Response(200, LiveStream(stream(), b""))
            if request.path == "/made":
                return Response(201, b'{"token":"%b"}' % planted.token.encode())
            return Response(200, b"", headers={"X-Sent": planted.token})

        server = HttpServer(handle, lambda error, _headers: Response(error.http_status))
        await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        writer.write(b"GET %b HTTP/1.0\r\n\r\n" % path)
        await reader.read()
        writer.close()
        await server.drain(1000)

    for path in (b"/headers", b"/stream"):
        run(answer_to(path))
        with pytest.raises(AssertionError, match="sent"):
            WATCH.check()
    before = WATCH.bytes_watched
    run(answer_to(b"/made"))
    WATCH.check()
    assert WATCH.bytes_watched > before


def test_whatever_a_node_logs_passes_the_watch(planted: Planted) -> None:
    logging.getLogger("goq.http").warning("refused %s", planted.token)
    with pytest.raises(AssertionError, match="logged"):
        WATCH.check()


def test_the_secret_of_the_folder_in_the_log_of_a_process_fails(tmp_path: Path) -> None:
    folder, log = tmp_path / "data", tmp_path / "data.stderr"
    folder.mkdir()
    secret = draw_secret()
    (folder / "admin.token").write_text(format_token("admin", secret) + "\n")
    log.write_text("goq ready\n")
    SecretWatch().check_node(folder, log)
    log.write_text(f"goq wrote {secret}\n")
    with pytest.raises(AssertionError, match=r"data\.stderr"):
        SecretWatch().check_node(folder, log)
