"""Calls between nodes, over their HTTP ports, signed or sealed with the cluster secret.

auth            signatures of calls and responses, replay protection
server          authentication of callers, dispatch by path
client          signed calls by URL and by node id
peer_streams    the streams between nodes, over which leaders push
stream_calls    small calls over these streams
peer_links      which node reaches which, and over which third node
frame_body      bodies that carry frames
replica_client  calls of replicas: fetch, repair, archive
replica_server  handlers of those calls
"""
