"""The sink into a table of the state's database: rows are copied into staging tables, and moved when they count."""
