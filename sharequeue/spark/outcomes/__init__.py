"""Turn a handler's written outcomes into an acknowledgement for every record of a lease."""
