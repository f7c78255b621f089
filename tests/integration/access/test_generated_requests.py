"""Generated requests with a token of each verb are answered as described, and stay within it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from goq.access.rule import Verb
from tests.support.api.generated_requests import check_requests_with_token
from tests.support.node.running_node import RunningNode, running_node

_CHANGING = (Verb.MANAGE, Verb.OPERATE, Verb.ADMIN)
"""What these verbs allow changes topics, groups, schedules or tokens."""


class Admin:
    """What the administrator of a node makes and sees."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        token = (node.data_dir / "admin.token").read_text().strip()
        self._headers = {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self._node.request(method, path, body, self._headers)
        assert answer.status < 300, answer
        return answer.json if answer.body else None

    def settings(self) -> dict[str, Any]:
        """Return all that ``manage``, ``operate`` and ``admin`` change."""
        topic = self.call("GET", "/v1/topics/orders")
        return {
            "topics": [named["name"] for named in self.call("GET", "/v1/topics")["topics"]],
            "partitions": len(topic["partitions"]),
            "settings": topic["settings"],
            "groups": self.call("GET", "/v1/topics/orders/groups/g")["settings"],
            "schedules": self.call("GET", "/v1/schedules/yearly")["every"],
            "tokens": [token["id"] for token in self.call("GET", "/v1/tokens")["tokens"]],
        }


@pytest.mark.long
@pytest.mark.parametrize("verb", Verb)
def test_generated_requests_with_this_verb_are_answered_as_described(
    verb: Verb, tmp_path: Path
) -> None:
    with running_node(security={"auth": "tokens"}) as node:
        admin = Admin(node)
        admin.call("POST", "/v1/topics", {"name": "orders", "partitions": 2})
        messages = {"messages": [{"value": "v", "key": "k"}] * 10}
        admin.call("POST", "/v1/topics/orders/messages", messages)
        admin.call("POST", "/v1/topics/orders/groups/g/receive", {"max_messages": 2})
        yearly = {"topic": "orders", "every": "366d", "messages": [{"value": "v"}]}
        admin.call("PUT", "/v1/schedules/yearly", yearly)
        places = "*" if verb in (Verb.OPERATE, Verb.ADMIN) else "orders"
        made = {"name": "generated", "allow": [f"{verb}:{places}"]}
        token = admin.call("POST", "/v1/tokens", made)["token"]
        before = admin.settings()
        named = {"path.topic": "orders", "path.group": "g", "path.schedule": "yearly"}
        check_requests_with_token(node, tmp_path, token, named)
        if verb not in _CHANGING:
            assert admin.settings() == before
