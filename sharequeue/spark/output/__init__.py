"""The files of a lease: where they lie, who sees them, how many become few."""
