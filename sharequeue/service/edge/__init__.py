"""Limits for the clients of the service: connections, deadlines, rates, certificates, hosts."""
