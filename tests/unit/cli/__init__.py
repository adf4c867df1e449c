"""The command's grammar and how it writes."""
