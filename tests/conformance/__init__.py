"""What a real broker returned, and what the specifications draw, replayed on every engine of the project."""
