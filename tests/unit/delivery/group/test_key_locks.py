from __future__ import annotations

from goq.delivery.group.key_locks import HeldMessage, KeyLocks, MessageAttributes


def held(offset: int, *, key: int = 7, lane: int = 1, tenant: int = 0) -> HeldMessage:
    return HeldMessage(offset, MessageAttributes(key, lane, tenant), 0)


def test_what_is_held_behind_a_key_comes_in_order_when_nothing_has_it_in_hand() -> None:
    locks = KeyLocks()
    locks.add_leases([7])
    for offset in (5, 3, 9):
        locks.hold(held(offset))
    assert locks.free_lanes() == []
    locks.add_retry(7, 1, 2)
    assert locks.remove_lease(7)
    assert locks.pop_free(1) is None
    locks.remove_retry(7, 1, 2)
    assert locks.free_lanes() == [1]
    assert locks.pop_free(1) == held(5)
    assert locks.pop_next(7, 1) == held(3)
    assert locks.held_count == 1


def test_a_key_that_is_leased_twice_is_free_when_both_have_ended() -> None:
    locks = KeyLocks()
    locks.add_leases([7])
    locks.add_leases([7])
    locks.hold(held(1))
    assert not locks.remove_lease(7)
    assert locks.free_lanes() == []
    assert locks.remove_lease(7)
    assert locks.free_lanes() == [1]


def test_each_lane_holds_back_for_itself() -> None:
    locks = KeyLocks()
    locks.add_leases([7])
    locks.hold(held(1, lane=2))
    locks.hold(held(2, lane=0))
    locks.remove_lease(7)
    assert sorted(locks.free_lanes()) == [0, 2]
    assert not locks.must_wait(MessageAttributes(7, 1, 0))
    assert locks.must_wait(MessageAttributes(7, 0, 0))
    assert locks.pop_free(0) == held(2, lane=0)
    assert not locks.must_wait(MessageAttributes(7, 0, 0))
    assert locks.pop_free(2) == held(1, lane=2)


def test_what_is_put_back_is_the_next_again() -> None:
    locks = KeyLocks()
    locks.add_leases([7])
    locks.hold(held(1))
    locks.hold(held(2))
    locks.remove_lease(7)
    first = locks.pop_free(1)
    assert first is not None
    locks.put_back(first)
    assert locks.pop_free(1) is None
    locks.unlock(7)
    assert locks.pop_free(1) == first


def test_retries_of_a_key_are_in_order_of_offset_lane_by_lane() -> None:
    locks = KeyLocks()
    for lane, offset in ((1, 9), (0, 8), (1, 3)):
        locks.add_retry(7, lane, offset)
    assert (locks.retries(7, 0), locks.retries(7, 1), locks.retries(7, 2)) == ([8], [3, 9], [])
    assert sorted(locks.all_retries(7)) == [3, 8, 9]
    assert locks.is_locked(7)
    assert not locks.is_leased(7)


def test_a_key_is_for_the_tenant_whose_message_is_the_first_of_a_lane() -> None:
    locks = KeyLocks()
    locks.add_leases([7])
    locks.hold(held(1, tenant=1))
    locks.hold(held(2, tenant=2))
    locks.hold(held(3, lane=0, tenant=3))
    assert not locks.is_next_of_tenant(7, 1)
    locks.remove_lease(7)
    assert [locks.is_next_of_tenant(7, tenant) for tenant in (1, 2, 3)] == [True, False, True]
    assert not locks.is_next_of_tenant(8, 1)


def test_a_held_message_that_another_event_decided_about_is_not_blocked() -> None:
    locks = KeyLocks()
    locks.add_leases([7])
    for offset in (1, 2, 3, 8):
        locks.hold(held(offset))
    locks.forget(2, 3)
    locks.forget(5, 100)
    assert locks.blocked_count == 2
    assert locks.held_at(2) is None
    assert [message.offset for message in locks.held_within(0, 100)] == [1, 3]
    assert locks.held_count == 4
    locks.hold(held(2, lane=0))
    locks.remove_lease(7)
    assert locks.pop_free(1) == held(1)
    assert locks.pop_next(7, 1) == held(2)
    assert locks.held_at(2) == held(2, lane=0)
    assert locks.blocked_count == 2
