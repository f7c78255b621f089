"""Clients in forked processes: what they are told is what the node has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.node.node_process import NodeProcess

_COMMON = """
import asyncio, json, multiprocessing, os, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
import goq
from goq.errors import InvalidInput

URL, METHOD = sys.argv[1:3]
CLIENT = goq.Client(URL)

def work(number):
    "Publish five messages; return what was told as stored."
    told = []
    for n in range(5):
        published = CLIENT.publish("t", f"{number}.{n}", key=str(number))
        told.append([f"{number}.{n}", published.id.partition, published.id.offset])
    return told
"""
_WORKERS = """
def by_fork():
    told, pipes = [], []
    for number in range(8):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, json.dumps(work(number)).encode())
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    told += work("parent")
    for reader in pipes:
        with os.fdopen(reader) as lines:
            told += json.load(lines)
        os.wait()
    return told

def by_pool(method):
    with multiprocessing.get_context(method).Pool(4) as pool:
        return sum(pool.map(work, range(8)), work("parent"))

def by_executor():
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(4, mp_context=context) as executor:
        return sum(executor.map(work, range(8)), work("parent"))

if __name__ == "__main__":
    told = work("before")
    if METHOD == "os.fork":
        told += by_fork()
    elif METHOD == "executor":
        told += by_executor()
    else:
        told += by_pool(METHOD)
    told += work("after")
    print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("fork") / "data") as node:
        yield node


def run(node: NodeProcess, folder: Path, script: str, method: str = "") -> Any:
    """Run a script with a client of the node; return what it prints."""
    file = folder / "script.py"
    file.write_text(_COMMON + script)
    with subprocess.Popen(
        [sys.executable, "-W", "error::RuntimeWarning", file, node.url, method],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            out, err = program.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)  # the children, too: one of them hangs
            raise
    assert program.returncode == 0, err
    assert err == ""
    return json.loads(out)


def stored(node: NodeProcess, topic: str) -> list[list[Any]]:
    found = []
    for partition in node.call("GET", f"/v1/topics/{topic}")["partitions"]:
        number = partition["partition"]
        page = node.call("GET", f"/v1/topics/{topic}/messages?partition={number}&limit=1000")
        found += [[m["value"], number, m["offset"]] for m in page["messages"]]
    return found


@pytest.mark.parametrize("method", ["os.fork", "fork", "spawn", "forkserver", "executor"])
def test_what_workers_are_told_is_stored_is_stored(
    node: NodeProcess, tmp_path: Path, method: str
) -> None:
    node.request("DELETE", "/v1/topics/t")
    node.call("POST", "/v1/topics", {"name": "t", "partitions": 3})
    told = run(node, tmp_path, _WORKERS, method)

    assert len(told) == 55
    assert sorted(stored(node, "t")) == sorted(told)


_CALLS = """
import asyncio, sys
import goq

def call(client):
    client.publish("t", "a", key="k")
    client.publish_many("t", ["b"])
    with client.producer("t") as producer:
        producer.send("c")
    for message in client.consume("t", group="g", max_messages=3):
        message.ack()
    client.receive("t", "g")

async def call_later(client):
    await client.publish("t", "a", key="k")
    await client.publish_many("t", ["b"])
    async with client.producer("t") as producer:
        await producer.send("c")
    async for message in client.consume("t", group="g", max_messages=3):
        await message.ack()
    await client.receive("t", "g")
    await client.aclose()

if sys.argv[2] == "Client":
    client = goq.Client(sys.argv[1])
    known = set(sys.modules)
    call(client)
else:
    client = goq.AsyncClient(sys.argv[1])
    known = set(sys.modules)
    asyncio.run(call_later(client))
print(sorted(set(sys.modules) - known))
"""


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_calls_import_nothing_for_a_fork_meanwhile_would_lock_it_in_the_child(
    node: NodeProcess, kind: str
) -> None:
    node.request("DELETE", "/v1/topics/t")
    command = [sys.executable, "-c", _CALLS, node.url, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_fork_amid_publishing_threads_neither_hangs_nor_loses(
    node: NodeProcess, tmp_path: Path
) -> None:
    node.request("DELETE", "/v1/topics/t")
    script = """
stop, told = threading.Event(), []
def publish(number):
    n = 0
    while not stop.is_set():
        done = CLIENT.publish("t", f"thread {number}.{n}")
        told.append([f"thread {number}.{n}", done.id.partition, done.id.offset])
        n += 1

threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for number in range(20):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(work(number)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        told += json.load(lines)
    os.wait()
stop.set()
for thread in threads: thread.join()
print(json.dumps(told))
"""
    told = run(node, tmp_path, script)
    assert sorted(stored(node, "t")) == sorted(told)


def test_a_producer_and_a_loop_of_the_parent_are_refused_in_a_child_and_go_on_in_the_parent(
    node: NodeProcess, tmp_path: Path
) -> None:
    for name in ("t", "out"):
        node.request("DELETE", f"/v1/topics/{name}")
        node.call("POST", "/v1/topics", {"name": name, "partitions": 1})
    script = """
producer = CLIENT.producer("out", linger="10s")
producer.send("of the parent")
loop = CLIENT.consume("t", group="g", timeout="30s")
work(0)
first = next(loop)
refused = []

def attempt(call):
    try:
        call()
    except InvalidInput as error:
        return str(error)

reader, writer = os.pipe()
if os.fork() == 0:
    refused = [attempt(lambda: producer.send("x")), attempt(producer.flush),
               attempt(lambda: producer.send_many(["x"])), attempt(lambda: next(loop))]
    producer.close()
    CLIENT.close()
    with goq.Client(URL) as own, own.producer("out") as another:
        another.send("of the child")
    os.write(writer, json.dumps(refused).encode())
    os._exit(0)
os.close(writer)
with os.fdopen(reader) as lines:
    refused = json.load(lines)
os.wait()
first.ack()
values = [first.value.decode()]
for message in loop:
    values.append(message.value.decode())
    message.ack()
    if len(values) == 5:
        break
loop.close()
producer.close()
print(json.dumps([refused, values, os.getpid(), CLIENT.client_id]))
"""
    refused, values, pid, client_id = run(node, tmp_path, script)
    assert all(f"belongs to process {pid}, which forked this one" in each for each in refused)
    assert len(refused) == 4
    assert values == [f"0.{n}" for n in range(5)]
    assert sorted(value for value, *_ in stored(node, "out")) == ["of the child", "of the parent"]
    assert client_id.endswith(f"-{pid}")
    group = node.call("GET", "/v1/topics/t/groups/g")
    assert (group["lag"], group["dead"]) == (0, 0)


def test_a_child_settles_what_its_parent_received_under_its_own_name(
    node: NodeProcess, tmp_path: Path
) -> None:
    node.request("DELETE", "/v1/topics/t")
    script = """
work(0)
messages = CLIENT.receive("t", "settled", wait="10s")
if (child := os.fork()) == 0:
    for message in messages:
        message.ack()
    assert CLIENT.client_id.endswith(f"-{os.getpid()}"), CLIENT.client_id
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(json.dumps(len(messages)))
"""
    assert run(node, tmp_path, script) == 5
    assert node.call("GET", "/v1/topics/t/groups/settled")["lag"] == 0


def test_an_asynchronous_client_works_in_the_loop_of_a_child(
    node: NodeProcess, tmp_path: Path
) -> None:
    node.request("DELETE", "/v1/topics/t")
    script = """
client = goq.AsyncClient(URL)

async def main(number):
    found = []
    for value in (f"{number}.{n}" for n in range(5)):
        found.append([value, *(await client.publish("t", value)).id[1:]])
    if number != "parent":
        await client.aclose()
    return found

told = asyncio.run(main("parent"))
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, json.dumps(asyncio.run(main("child"))).encode())
    os._exit(0)
os.close(writer)
with os.fdopen(reader) as lines:
    told += json.load(lines)
os.wait()
print(json.dumps(told))
"""
    told = run(node, tmp_path, script)
    assert len(told) == 10
    assert sorted(stored(node, "t")) == sorted(told)
