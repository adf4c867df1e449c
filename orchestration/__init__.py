"""Dagster's room: the assets, checks, sensors and schedules that run share groups, and the demo that launches
them.

Definitions live under ``defs/``, one folder per domain; what they are made of lives beside it. Nothing
outside this package imports it.
"""
