"""Run a cluster of three nodes on this machine until Ctrl-C.

python tools/cluster.py [--dir cluster-data] [--port 8080] [--nodes 3]

The nodes listen on the port and the next ones. What is in the folder stays: the same command goes
on where it ended. A node that ends, or is killed to see what happens, is started again after a
while.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path

HOST = "127.0.0.1"
READY_S_MAX = 60.0
STOP_S_MAX = 20.0
_AGAIN_S = 5.0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("cluster-data"))
    parser.add_argument("--port", type=int, default=8080, help="of the first node")
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    secret = _secret(options.dir)
    numbers = range(options.nodes)
    peers = ",".join(f"n{n + 1}={HOST}:{options.port + 1000 + n}" for n in numbers)
    urls = [f"http://{HOST}:{options.port + n}" for n in numbers]
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    running: list[subprocess.Popen[bytes]] = []
    start = partial(_start, options.dir, options.port, peers=peers, secret=secret)
    try:
        running.extend(start(number) for number in numbers)
        _wait_until_ready(urls, running)
        print(f"{options.nodes} nodes are ready, data and logs in {options.dir.resolve()}")
        print(f"export GOQ_SERVER={','.join(urls)}")
        print("goq cluster status --watch")
        pids = ", ".join(f"n{number + 1} is process {running[number].pid}" for number in numbers)
        print(f"{pids}: kill one, and see the others go on.")
        print("Ctrl-C stops them all.", flush=True)
        while True:
            time.sleep(0.2)
            for number in numbers:
                if running[number].poll() is not None:
                    print(f"n{number + 1} has ended; it starts again in {_AGAIN_S:g} s", flush=True)
                    time.sleep(_AGAIN_S)
                    running[number] = start(number)
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(running)


def _secret(folder: Path) -> Path:
    path = folder / "secret"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32) + "\n")
    return path


def _start(
    folder: Path, port: int, number: int, *, peers: str, secret: Path
) -> subprocess.Popen[bytes]:
    name = f"n{number + 1}"
    flags = {
        "--data-dir": folder / name,
        "--listen": f"{HOST}:{port + number}",
        "--node-id": name,
        "--cluster-listen": f"{HOST}:{port + 1000 + number}",
        "--peers": peers,
        "--cluster-secret-file": secret,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "goq_cli", "serve", *words],
            stdout=log,
            stderr=log,
            env=os.environ,
            start_new_session=True,  # a Ctrl-C is for this process, which stops them in turn
        )


def _wait_until_ready(urls: list[str], running: list[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + READY_S_MAX
    while not all(_has_controller(url) for url in urls):
        if time.monotonic() > until or any(node.poll() is not None for node in running):
            raise SystemExit("the nodes did not become ready; see their logs")
        time.sleep(0.1)


def _has_controller(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/cluster", timeout=1) as answer:
            return b'"controller":null' not in answer.read()
    except OSError:
        return False


def _stop(running: list[subprocess.Popen[bytes]]) -> None:
    for node in running:
        node.terminate()
    for node in running:
        try:
            node.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()


if __name__ == "__main__":
    sys.exit(main())
