"""What a tenant's cap postpones goes on in order, as far as there is room."""

from __future__ import annotations

from random import Random

import pytest

from goq.delivery.group.tenant_cap import TenantCap


class Resumed:
    """Records what goes on; a number below 10 uses up no room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.found: list[tuple[str, int, int]] = []

    def retry(self, tenant: int, offset: int) -> bool:
        self.found.append(("retry", tenant, offset))
        return offset >= 10

    def key(self, tenant: int, key: int) -> bool:
        self.found.append(("key", tenant, key))
        return key >= 10


def resumed(cap: TenantCap, room: int) -> list[tuple[str, int, int]]:
    answer = Resumed(room)
    cap.resume(lambda _tenant: answer.room, answer.retry, answer.key)
    return sorted(answer.found)


def test_nothing_goes_on_before_a_message_of_the_tenant_has_ended() -> None:
    cap = TenantCap()
    assert not cap.has_parked
    cap.park_retry(1, 20)
    cap.park_key(2, 30)
    assert cap.has_parked
    cap.on_tenant_freed(3)
    assert resumed(cap, 5) == []
    cap.on_tenant_freed(1)
    assert resumed(cap, 5) == [("retry", 1, 20)]
    assert cap.has_parked
    assert resumed(cap, 5) == []
    cap.on_tenant_freed(2)
    assert resumed(cap, 5) == [("key", 2, 30)]
    assert not cap.has_parked


def test_as_much_goes_on_as_uses_up_the_room_and_the_rest_later() -> None:
    cap = TenantCap()
    for offset in (20, 5, 21, 22, 21):
        cap.park_retry(1, offset)
    cap.on_tenant_freed(1)
    assert resumed(cap, 0) == []
    assert resumed(cap, 2) == [("retry", 1, 5), ("retry", 1, 20), ("retry", 1, 21)]
    assert cap.has_parked
    assert resumed(cap, 1) == [("retry", 1, 22)]
    assert not cap.has_parked


def test_a_tenant_that_has_no_room_again_waits_for_another_end() -> None:
    for park in (TenantCap.park_retry, TenantCap.park_key):
        cap = TenantCap()
        cap.park_retry(1, 20)
        cap.park_key(1, 20)
        cap.on_tenant_freed(1)
        park(cap, 1, 21)
        assert resumed(cap, 9) == []
        cap.on_tenant_freed(1)
        assert len(resumed(cap, 9)) == 3


@pytest.mark.parametrize("seed", range(20))
def test_what_is_parked_goes_on_once_and_in_order(seed: int) -> None:
    chance, cap = Random(seed), TenantCap()
    waiting: dict[tuple[str, int], list[int]] = {}
    freed = set[int]()
    for number in range(100):
        tenant = chance.randrange(3)
        kind = chance.choice(("retry", "key"))
        action = chance.random()
        if action < 0.5:
            (cap.park_retry if kind == "retry" else cap.park_key)(tenant, 10 + number)
            waiting.setdefault((kind, tenant), []).append(10 + number)
            freed.discard(tenant)
        elif action < 0.8:
            cap.on_tenant_freed(tenant)
            if any(waiting.get((each, tenant)) for each in ("retry", "key")):
                freed.add(tenant)
        else:
            room = chance.randrange(4)
            expected = []
            for each in sorted(freed):
                for name in ("retry", "key"):
                    gone = waiting.get((name, each), [])[:room]
                    expected += [(name, each, one) for one in gone]
                    waiting[name, each] = waiting.get((name, each), [])[room:]
                if not any(waiting[name, each] for name in ("retry", "key")):
                    freed.discard(each)
            assert resumed(cap, room) == sorted(expected)
        assert cap.has_parked == any(waiting.values())
