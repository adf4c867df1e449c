"""Payments and refunds, from two topics, into one table in Postgres: each exactly once."""
