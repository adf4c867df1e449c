"""Lease records, renew the locks of a round, and give the reason when there is nothing to lease."""
