"""How the locks of a round are kept, how a run is stopped, and why there may be nothing to lease."""
