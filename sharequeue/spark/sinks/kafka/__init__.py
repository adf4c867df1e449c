"""The sink into a topic: `records` makes records of rows, executors send them (`sending`), `topic` is the sink."""
