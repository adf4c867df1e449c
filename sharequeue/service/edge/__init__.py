"""Who gets in, and how much of the service may one client have? Connections, deadlines, rates, TLS, hosts."""
