"""Ready queues of a partition, and the order in which each group reads them.

policy            the topic's rules for lanes and tenants, and the tenants' numbers
ready_queue       one queue of a lane and tenant: runs of offsets and their ready times
ready_queues      all queues of a partition, and the cursors of a group in them
weighted_shares  deficit round robin between queues; shares of lanes
starvation_bound  the queues whose heads have waited longest
fair_scheduler    offers messages to a receive: lanes, then tenants, then the starvation bound
"""
