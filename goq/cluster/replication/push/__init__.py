"""Pushing of what a leader appends to followers that keep up, over a stream between two nodes.

protocol  the messages on the stream
sender    the leader's side of one session
receiver  the follower's side: one write and one sync for all that has arrived
round     what it stores of one partition at a time
reports   what it tells the leader of that
"""
