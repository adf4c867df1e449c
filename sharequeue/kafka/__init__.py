"""What the broker is asked: clients and their security, topics and their logs, records by offset, offset resets."""
