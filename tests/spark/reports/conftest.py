from __future__ import annotations

from tests.support.pipeline.goq_command import goq

__all__ = ["goq"]
