"""Runs of a worker app in a thread, and what became of its messages."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import goq
from goq.errors import GroupNotFound

RUN_S_MAX = 60.0


@contextmanager
def running(app: goq.WorkerApp) -> Iterator[list[BaseException]]:
    """Run an app until the end of the block; yield the errors that the run raises.

    A failure of the block tells them too, and where the threads of the workers are.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield errors
    except BaseException as failure:
        failure.add_note(f"the run raised {errors}; the threads of its workers:\n{_stacks()}")
        raise
    finally:
        if thread.is_alive():
            app.stop()
        thread.join(RUN_S_MAX)
    assert not thread.is_alive()


def _stacks() -> str:
    frames = sys._current_frames()
    stacks = [
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threading.enumerate()
        if thread.ident in frames and thread is not threading.current_thread()
    ]
    return "\n".join(stacks)


def state_of(client: goq.Client, topic: str) -> tuple[int, int, int]:
    """Return how many messages of the group ``g`` are not done, leased, and to be retried.

    Before the group's first receive the first number is -1.
    """
    try:
        found: Any = client.describe_group(topic, "g").raw
    except GroupNotFound:
        return -1, 0, 0
    return found["lag"], found["leased"], found["retry"]


def is_done(client: goq.Client, topic: str) -> Callable[[], bool]:
    """Return whether the group ``g`` has done all messages."""
    return lambda: state_of(client, topic) == (0, 0, 0)


def steps_of(client: goq.Client, message: goq.MessageId) -> list[str]:
    """Return the names of what happened to a message."""
    found: Any = client.get_trace(message).raw
    return [event["event"] for event in found["events"] if event["event"] != "RETAINED"]
