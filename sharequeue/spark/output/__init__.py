"""The files of a lease: where they are, which of them count, how many small ones become few."""
