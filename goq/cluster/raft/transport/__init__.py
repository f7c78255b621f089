"""Authenticated connections between Raft members.

transport      connects each pair of members, and sends the library's messages
link           one connection, from handshake to close
handshake      the handshake's frames and keys, and the seal of each later frame
peer_identity  rejects members that come with another disk than the cluster knows
tls            TLS 1.3 with certificates of the cluster's authority
"""
