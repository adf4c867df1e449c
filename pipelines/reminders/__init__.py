"""Reminders that are due at a time of their own: a handler in Python, record by record."""
