"""Kafka's requests of share groups over HTTP, and the list of groups.

Each module has the operations of one subject: for each the body, the answer, and what is done. The admin operations
are for callers that cannot reach Postgres; each runs with the rights of its principal. The error of a refused group
or partition is in the response and does not stop the others.
"""
