"""Calls between nodes, over their HTTP ports, signed with the cluster secret.

auth            signatures of calls and responses, replay protection
server          authentication of callers, dispatch by path
client          signed calls by URL and by node id
peer_streams    the streams between nodes, over which leaders push
peer_links      which node reaches which, and over which third node
frame_body      bodies that carry frames
replica_client  calls of replicas: fetch, repair, archive
replica_server  handlers of those calls
"""
