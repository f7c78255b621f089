"""The SQS protocol on the wire.

json_protocol   AWS JSON 1.0: requests and answers
query_protocol  forms as requests, XML as answers
shapes          the requests of all operations
bounds          the limits that AWS documents, and the relaxed ones
errors          the errors of the protocol, and those of goq in its terms
digest          the MD5 digests that SDKs verify
"""
