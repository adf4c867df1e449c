"""The Dagster definitions: assets, checks, sensors and schedules that run share groups, and the demo that launches
them.

Definitions are in ``defs/``, one folder per domain. Nothing
outside this package imports it.
"""
