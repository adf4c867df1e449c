"""Tests against the project's own Postgres and broker."""
