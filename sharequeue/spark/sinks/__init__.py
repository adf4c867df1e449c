"""Where the output of a job goes: Parquet by lease, a Postgres table, a writer of the user's own."""
