"""How records are leased, how the locks of a round are kept, and why there may be nothing to lease."""
