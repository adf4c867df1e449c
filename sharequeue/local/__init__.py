"""The embedded stack: real servers in one data folder, started and stopped by one command.

The entry point is `stack.up()`. No other package of the queue imports this one: elsewhere, servers are your own and
environment variables have their addresses.
"""
