"""The share group ``flight-delays``: the flights of 2013, worked through run by run."""
