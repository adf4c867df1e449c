"""Redrive of dead letters: selection, records, and sending each letter exactly once."""
