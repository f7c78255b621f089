"""Streams whose token ends while they are opened."""

from __future__ import annotations

from typing import Any

import pytest

from goq.errors import NotAuthenticated
from tests.support.eventually import eventually
from tests.support.node.running_node import running_node

RECEIVE = "/v1/topics/orders/groups/billing/receive"


def test_a_stream_whose_token_ends_while_it_is_opened_is_refused_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_node(security={"auth": "tokens"}) as node:
        token = (node.data_dir / "admin.token").read_text().strip()
        admin = {"Authorization": f"Bearer {token}"}
        node.request("POST", "/v1/topics", {"name": "orders", "partitions": 1}, admin)
        app, broker = node.node.app, node.node.broker
        assert app is not None
        assert app.access is not None
        assert broker is not None
        opened = []
        open_stream = broker.streams.open

        def open_and_note(stream: Any) -> None:
            open_stream(stream)
            opened.append(stream)

        def refuse(_principal: Any) -> None:
            raise NotAuthenticated("this token is not valid any more")

        monkeypatch.setattr(broker.streams, "open", open_and_note)
        monkeypatch.setattr(app.access, "_check_valid", refuse)
        assert node.request("POST", RECEIVE, {"stream": True}, admin).status == 401
        assert len(opened) == 1
        eventually(lambda: node.on_loop(lambda: len(broker.streams)) == 0)
