"""The monitor of the synchronous client: an interrupt at any moment leaves its lock free."""

from __future__ import annotations

import itertools
import sys
import threading
from contextlib import suppress
from functools import partial

import pytest

from goq.client._sync.channel import Channel
from goq.client._sync.runtime import Monitor
from tests.support.client.interrupts import WAIT_S_MAX, interrupted_at, is_done

FILES = ("channel.py", "runtime.py", "threading.py")


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer counts instructions too")
@pytest.mark.parametrize("has_item", [False, True])
def test_an_interrupt_at_any_instruction_leaves_the_lock_free(has_item: bool) -> None:
    for number in itertools.count(1):
        channel = Channel[int](5)
        if has_item:
            channel.offer(1)
        if not interrupted_at(number, partial(channel.take, 0.001), FILES):
            break
        assert is_done(partial(channel.offer, 2)), f"interrupted at moment {number}"
    assert number > 5


def test_a_waiter_is_woken_by_a_notification_and_by_its_timeout() -> None:
    monitor = Monitor()
    began, woken = threading.Event(), threading.Event()
    threading.Thread(target=_wait, args=(monitor, began, woken), daemon=True).start()
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


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer counts instructions too")
def test_a_waiter_is_woken_by_the_next_notification_after_one_that_was_interrupted() -> None:
    for number in itertools.count(1):
        monitor = Monitor()
        began, woken = threading.Event(), threading.Event()
        waiter = threading.Thread(target=_wait, args=(monitor, began, woken), daemon=True)
        waiter.start()
        assert began.wait(WAIT_S_MAX)
        with monitor:
            is_interrupted = interrupted_at(number, monitor.notify_all, FILES)
        with monitor:
            monitor.notify_all()
        assert woken.wait(WAIT_S_MAX), f"interrupted at moment {number}"
        if not is_interrupted:
            break
    assert number > 3


def _wait(monitor: Monitor, began: threading.Event, woken: threading.Event) -> None:
    with monitor:
        began.set()
        monitor.wait()
    woken.set()
