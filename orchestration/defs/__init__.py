"""Definitions by domain: one folder per share group, and the resources they share."""
