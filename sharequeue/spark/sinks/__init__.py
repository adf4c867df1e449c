"""The sinks of a job's output: Parquet by lease, Postgres, Delta and Iceberg tables, a writer of the user."""
