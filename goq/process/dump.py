"""A picture of what a node does at this moment, for its log."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator

from goq.node import NodeServer

_REQUESTS_MAX = 100
_FRAMES_MAX = 8


def dump(node: NodeServer) -> str:
    """Return the requests under way, the places where tasks wait, and the stacks of threads."""
    return "\n".join(
        [
            "what is under way:",
            *_requests(node.requests_under_way()),
            *_tasks(asyncio.all_tasks()),
            *_threads(),
        ]
    )


def _requests(requests: Iterable[str]) -> Iterator[str]:
    known = sorted(requests)
    yield f"{len(known)} requests"
    yield from (f"  {request}" for request in known[:_REQUESTS_MAX])
    if len(known) > _REQUESTS_MAX:
        yield f"  and {len(known) - _REQUESTS_MAX} more"


def _tasks(tasks: Iterable[asyncio.Task[object]]) -> Iterator[str]:
    places = Counter(_place(task) for task in tasks)
    yield f"{places.total()} tasks, by where they wait"
    yield from (f"  {count} at {place}" for place, count in places.most_common())


def _place(task: asyncio.Task[object]) -> str:
    stack = task.get_stack(limit=1)
    name = getattr(task.get_coro(), "__qualname__", "?")
    if not stack:
        return name
    code = stack[-1].f_code
    return f"{name}, {code.co_filename}:{stack[-1].f_lineno}"


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    yield f"{len(frames)} threads, the innermost call last"
    for ident, frame in frames.items():
        yield f"  {names.get(ident, ident)}"
        stack = traceback.extract_stack(frame, limit=_FRAMES_MAX)
        yield from (f"    {call.filename}:{call.lineno} {call.name}" for call in stack)
