"""Signals that end a blocked call: seen on a process whose main thread they cannot reach."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_BLOCKED = """
import os, signal, threading
from goq_cli.interrupts import Terminated, remind_of_signals

def terminate(number, frame):
    raise Terminated

signal.signal(signal.SIGTERM, terminate)
remind_of_signals()
threading.Thread(target=threading.Event().wait, daemon=True).start()
# Another thread takes the signals: the call below is blocked, and only the flags are set.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
try:
    print("blocked", flush=True)
    os.read(0, 1)
except (Terminated, KeyboardInterrupt) as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGTERM, "Terminated"), (signal.SIGINT, "KeyboardInterrupt")],
)
def test_a_signal_ends_a_call_that_it_did_not_interrupt(
    number: signal.Signals, raised: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _BLOCKED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "blocked\n"
            process.send_signal(number)
            assert process.wait(timeout=30) == 0
            assert process.stdout.read() == f"{raised}\n"
        finally:
            process.kill()


_FAILS_AS_IT_CLEANS_UP = """
import sys
from goq.errors import Unavailable
from goq_cli import main
from goq_cli.interrupts import Terminated

def app(*_arguments, **_options):
    try:
        raise {interrupt}
    except BaseException:
        raise {failure}("half a change")

main.build_app = lambda _names: app
main.main(["version"])
"""


@pytest.mark.parametrize(("interrupt", "code"), [("KeyboardInterrupt", 130), ("Terminated", 143)])
@pytest.mark.parametrize("failure", ["ValueError", "Unavailable"])
def test_a_failure_while_an_interrupt_cleans_up_ends_as_the_interrupt(
    interrupt: str, code: int, failure: str
) -> None:
    script = _FAILS_AS_IT_CLEANS_UP.format(interrupt=interrupt, failure=failure)
    ended = subprocess.run([sys.executable, "-P", "-c", script], stderr=subprocess.PIPE, timeout=30)
    assert (ended.returncode, ended.stderr) == (code, b"")
