"""The embedded stack: real servers of our own, under one folder, started and stopped by one command.

`stack.up()` is the way in. Nothing in the queue itself imports this package: elsewhere the servers are
somebody else's and environment variables say where they are.
"""
