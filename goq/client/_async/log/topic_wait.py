"""The wait for a topic that its consumer expects, and that is not created yet."""

from __future__ import annotations

import time
from typing import Final

from goq.client._async.http import Http
from goq.client._async.runtime import sleep
from goq.errors import TopicNotFound

_PAUSE_S: Final = 0.25


async def pause_for_topic(http: Http, error: TopicNotFound, since_s: float) -> None:
    """Pause before the topic is looked for again; raise ``error`` if ``on_retry`` says so."""
    on_retry = http.options.retry.on_retry
    if on_retry is not None and not on_retry(error, time.monotonic() - since_s):
        raise error
    await sleep(_PAUSE_S)
