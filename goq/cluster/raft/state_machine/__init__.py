"""The state machine that Raft's commands change.

state_machine  the interface, and a wrapper that records applied entries
sqlite         a base that keeps a state machine's tables in SQLite, and applies a request once
"""
