"""Reminders with their own due times: a handler in Python, record by record."""
