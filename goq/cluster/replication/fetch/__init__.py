"""Fetching of a leader's logs by its followers.

server           the sessions of followers, and the responses to their fetches
session          what a leader knows of one session
follower_update  what follows a follower's position, read from the leader's logs
throttle         the rate for replicas that a reassignment adds
fetcher          the fetch loop of a follower, one for each leader's node
fetcher_manager  all fetchers of a node, and the streams with other nodes
"""
