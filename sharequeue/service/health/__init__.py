"""How is the service? What a probe asks, what is wrong and since when, and whether the servers behind it answer."""
