"""What measurements share: servers, requests made beforehand, rows and reports.

machine  the facts without which figures mean nothing
disk     the rate of the disk itself
servers  nodes and Redis, each a process
loader   a client that costs almost nothing
frames   publish requests made beforehand
resp     the same for Redis
topics   topics for one measurement each
rows     works, and their rows in the table
report   results as a table and as JSON
"""
