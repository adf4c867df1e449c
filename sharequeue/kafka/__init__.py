"""Access to the broker: clients and their security, topics and their logs, records by offset, offset resets."""
