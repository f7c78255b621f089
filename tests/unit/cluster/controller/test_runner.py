"""The controller hears who speaks, and knocks at who does not."""

from __future__ import annotations

import asyncio
import socket

from goq.cluster.controller.runner import is_port_closed


def test_a_port_that_nobody_listens_on_is_told_from_one_that_is_slow_to_answer() -> None:
    with socket.socket() as deaf, socket.socket() as slow:
        deaf.bind(("127.0.0.1", 0))
        slow.bind(("127.0.0.1", 0))
        slow.listen()
        assert asyncio.run(is_port_closed(f"http://127.0.0.1:{deaf.getsockname()[1]}"))
        assert not asyncio.run(is_port_closed(f"http://127.0.0.1:{slow.getsockname()[1]}"))
