"""The watch for secrets finds those that are planted, so that its silence says something."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from goq.access.token import draw_secret, draw_token_id, format_token
from tests.support.api.secret_watch import SecretWatch


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
