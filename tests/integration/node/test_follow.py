"""A request passes through few files: the bounds of ``tools/follow.py`` hold."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import REPOSITORY


def test_a_publish_a_receive_and_an_ack_stay_within_their_files_and_crossings() -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "follow.py", "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
