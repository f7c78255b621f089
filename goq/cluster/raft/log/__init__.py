"""Durable storage of a Raft member: log, term, vote and snapshots.

journal    the log file, with term and vote
records    the record format of the journal
snapshots  snapshots on their way to and from other members
"""
