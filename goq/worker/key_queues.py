"""Messages that wait for an earlier one of their key."""

from __future__ import annotations

from collections import deque

from goq.client._sync.consume.received_message import ReceivedMessage

_Key = tuple[str, bytes]


class KeyQueues:
    """A queue for each key that has a message under way. Messages without a key never wait."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, deque[ReceivedMessage]] = {}
        self.waiting_count = 0

    def add(self, message: ReceivedMessage) -> bool:
        """Return whether a message may begin: its key is busy then. Otherwise it waits here."""
        if message.key is None:
            return True
        key = message.topic, message.key
        if key not in self._by_key:
            self._by_key[key] = deque()
            return True
        self._by_key[key].append(message)
        self.waiting_count += 1
        return False

    def next(self, ended: ReceivedMessage) -> ReceivedMessage | None:
        """Return the message that may begin as another has ended; without any its key is free."""
        if ended.key is None:
            return None
        key = ended.topic, ended.key
        if not self._by_key[key]:
            del self._by_key[key]
            return None
        self.waiting_count -= 1
        return self._by_key[key].popleft()

    def drain(self) -> list[ReceivedMessage]:
        """Remove and return all messages that wait; the keys stay busy."""
        waiting = [message for queue in self._by_key.values() for message in queue]
        for queue in self._by_key.values():
            queue.clear()
        self.waiting_count = 0
        return waiting
