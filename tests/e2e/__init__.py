"""Tests of the whole, through Dagster, Spark, Kafka and Postgres."""
