"""How the lanes of a partition and the tenants of a lane share what is handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Policy:
    """What a topic says about turns.

    ``lane_weights`` None is strict priority, else shares by lane number, 1 for lanes beyond.
    """

    lane_weights: tuple[int, ...] | None = None
    starvation_ms: int | None = None
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    tenant_in_flight_max: int | None = None
