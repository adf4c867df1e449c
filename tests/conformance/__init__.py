"""What a real broker answered, and what the specifications draw, replayed on every engine of the project."""
