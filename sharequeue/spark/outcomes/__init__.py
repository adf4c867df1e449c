"""From what a handler wrote to an acknowledgement for every record of a lease."""
