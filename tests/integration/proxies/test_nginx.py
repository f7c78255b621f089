"""A node behind a real nginx, with its defaults and with what people change."""

from __future__ import annotations

import os
import subprocess

import pytest

from goq.client import Client
from goq.errors import TimedOut, TooLarge
from tests.support.cli.forked_goq import start_goq
from tests.support.effort import first_of
from tests.support.node.fixtures import node, topic
from tests.support.node.nginx import NGINX, nginx
from tests.support.node.ports import free_port
from tests.support.node.running_node import RunningNode

__all__ = ["node", "topic"]
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

COUNT = 30
SETUPS = {
    "the defaults": (),
    "no buffering": ("proxy_buffering off;",),
    "HTTP/1.1": ("proxy_http_version 1.1;", 'proxy_set_header Connection "";'),
    "the client's Host": ("proxy_set_header Host $host;",),
    "all answers are buffered": ("proxy_ignore_headers X-Accel-Buffering;",),
}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("location", first_of(["/queue/", "/"], quick=1))
def test_each_message_comes_and_is_acknowledged(
    node: RunningNode, topic: str, setup: str, location: str
) -> None:
    with nginx(node.address, *SETUPS[setup], location=location) as url, Client(url) as client:
        for number in range(COUNT):
            client.publish(topic, str(number).encode())
        found = []
        for message in client.consume(topic, group="g", timeout="60s"):
            found.append(int(message.value))
            assert message.attempt == 1 or "X-Accel" in str(SETUPS[setup])
            message.ack()
            if len(found) == COUNT:
                break
    assert sorted(found) == list(range(COUNT))


def test_the_command_prints_messages_behind_nginx_with_its_defaults(
    node: RunningNode, topic: str
) -> None:
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": "hello"}]})
    with (
        nginx(node.address) as url,
        start_goq(
            ["consume", topic, "--group", "g"],
            env=os.environ | {"GOQ_SERVER": url},
            stdout=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"hello\n"
        process.terminate()


def test_a_page_of_the_proxy_is_an_error_that_names_it(node: RunningNode, topic: str) -> None:
    with (
        nginx(node.address, "client_max_body_size 1k;") as url,
        Client(url) as client,
        pytest.raises(TooLarge, match=r"by nginx/\S+, before the node\) answered .*413: 413 Req"),
    ):
        client.publish(topic, b"x" * 2000)
    with (
        nginx(("127.0.0.1", free_port())) as url,
        Client(url, retries="1s") as client,
        pytest.raises(TimedOut, match=r"by nginx/\S+, before the node\) .* 502: 502 Bad Gateway"),
    ):
        client.publish(topic, b"x")
