"""The progress of one group in one partition.

group           the group: leases, retries, offsets that were taken
lease           a lease and its consumer, and the deadlines of all leases
attempt_ranges  ranges of offsets with an attempt and a time, and the retries kept in them
encoded_leases  the leases of a group with very many, encoded ahead of a snapshot
offset_set      a set of offsets, dense below a floor
key_locks       locked keys, and the messages held back behind them
tenant_cap      deliveries that wait for room under a tenant's cap
retry_policy    backoff and the number of attempts
"""
