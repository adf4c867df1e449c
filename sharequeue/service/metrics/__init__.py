"""Metrics: figures read from the database, figures counted by this process, and their text format."""
