"""Interrupts as signal handlers raise them, at a chosen moment of some code."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType

WAIT_S_MAX = 30.0


class Interrupted(BaseException):
    """What the handler of a signal raises."""


class TimeLimit(Exception):
    """What the handler of a time limit raises: job queues have one for a task."""


def interrupted_at(
    number: int,
    work: Callable[[], object],
    files: tuple[str, ...],
    kind: type[BaseException] = Interrupted,
) -> bool:
    """Raise in ``work`` at this moment of those at which Python runs signal handlers.

    That is when a function begins, and after each call. Those of ``files`` count, by the ends of
    their names. Return whether there are so many.
    """
    left = [number]
    calls: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _argument: object) -> object:
        code = frame.f_code
        if not code.co_filename.endswith(files):
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
                raise kind
        return trace

    sys.settrace(trace)
    try:
        work()
    except kind:
        return True
    finally:
        sys.settrace(None)
    return False


def _handler_of(code: CodeType, offset: int) -> int | None:
    """Return where an exception at an instruction is handled."""
    entries = dis._parse_exception_table(code)
    found = [entry.target for entry in entries if entry.start <= offset < entry.end]
    return found[0] if found else None


def is_done(work: Callable[[], object]) -> bool:
    """Whether another thread can do this."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WAIT_S_MAX)
    return not thread.is_alive()
