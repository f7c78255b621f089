"""Tokens and rules: which principal may do what.

rule           a verb on a pattern of topics and groups; the rules of a principal
token          the text of an access token
token_record   the stored record of a token, and the rules of its changes
token_table    the principals of the valid tokens, by the text of a token
token_manager  creation, rotation and revocation of tokens
aws_key        key pairs of tokens for AWS SDKs
quota          quotas of tokens, as they are written and stored
quota_bucket   token buckets, of principals and of tenants; the room for messages in flight
quota_table    what principals use, and the refusal of more
spent_amounts  what principals used of their rates, until other nodes are told
refusal_pace   how fast a sender's refusals are answered
audit_record   records of the audit trail, and the bound of recorded refusals
admin_token    the first token of a node, in a file of its data folder
"""
