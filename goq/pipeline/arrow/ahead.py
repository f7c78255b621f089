"""Reading ahead: the next of something is made in a thread while the last is worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class _Ended:
    """How the source ended: with an error, or by itself."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@contextmanager
def ahead(source: Iterator[T], depth: int) -> Generator[Iterator[T], None, None]:
    """Give what ``source`` yields, up to ``depth`` items of it made before they are asked for.

    An error of the source is raised where the item would have come. Leaving the context stops the
    thread as soon as its present item is made.
    """
    made: queue.Queue[T | _Ended] = queue.Queue(depth)
    stopping = threading.Event()

    def make() -> None:
        error: BaseException | None = None
        try:
            for item in source:
                made.put(item)
                if stopping.is_set():
                    return
        except BaseException as caught:
            error = caught
        made.put(_Ended(error))

    def items() -> Iterator[T]:
        while True:
            item = made.get()
            if isinstance(item, _Ended):
                if item.error is not None:
                    raise item.error
                return
            yield item

    thread = threading.Thread(target=make, name="goq-ahead", daemon=True)
    thread.start()
    try:
        yield items()
    finally:
        stopping.set()
        while thread.is_alive():  # it may wait for room to put what nobody wants
            try:
                made.get(timeout=0.01)
            except queue.Empty:
                continue
        thread.join()
