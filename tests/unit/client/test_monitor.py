"""The monitor of the synchronous client: an interrupt at any moment leaves its lock free."""

from __future__ import annotations

import dis
import itertools
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType

import pytest

from goq.client._sync.channel import Channel
from goq.client._sync.runtime import Monitor

WAIT_S_MAX = 30.0
_TRACED = ("channel.py", "runtime.py", "threading.py")


class Interrupted(BaseException):
    """What the handler of a signal raises."""


def interrupted_at(number: int, work: Callable[[], object]) -> bool:
    """Raise in ``work`` at this moment of those at which Python runs signal handlers.

    That is when a function begins, and after each call. Return whether there are so many.
    """
    left = [number]
    calls: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _argument: object) -> object:
        code = frame.f_code
        if not code.co_filename.endswith(_TRACED):
            return None
        frame.f_trace_opcodes = True
        at = frame.f_lasti
        called = calls.pop(frame, None)
        if event == "opcode" and dis.opname[code.co_code[at]].startswith("CALL"):
            calls[frame] = at
        is_after_call = called is not None and _handler_of(code, called) == _handler_of(code, at)
        if event == "call" or (event == "opcode" and is_after_call):
            left[0] -= 1
            if left[0] == 0:
                raise Interrupted
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def _handler_of(code: CodeType, offset: int) -> int | None:
    """Return where an exception at an instruction is handled."""
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    found = [entry.target for entry in entries if entry.start <= offset < entry.end]
    return found[0] if found else None


def is_done(work: Callable[[], object]) -> bool:
    """Whether another thread can do this."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WAIT_S_MAX)
    return not thread.is_alive()


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer counts instructions too")
@pytest.mark.parametrize("has_item", [False, True])
def test_an_interrupt_at_any_instruction_leaves_the_lock_free(has_item: bool) -> None:
    for number in itertools.count(1):
        channel = Channel[int](5)
        if has_item:
            channel.offer(1)
        if not interrupted_at(number, partial(channel.take, 0.001)):
            break
        assert is_done(partial(channel.offer, 2)), f"interrupted at moment {number}"
    assert number > 5


def test_a_waiter_is_woken_by_a_notification_and_by_its_timeout() -> None:
    monitor = Monitor()
    began, woken = threading.Event(), threading.Event()

    def wait() -> None:
        with monitor:
            began.set()
            monitor.wait()
        woken.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert began.wait(WAIT_S_MAX)
    with monitor:  # the other thread has it until it waits
        monitor.notify_all()
    assert woken.wait(WAIT_S_MAX)
    with monitor:
        monitor.wait(0.001)
        monitor.notify_all()  # the waiter of before is gone
    with suppress(RuntimeError):
        monitor.release()
        raise AssertionError("the lock was held twice")
