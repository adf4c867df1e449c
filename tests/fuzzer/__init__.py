"""Attacks on the SQL functions from several connections, judged by their answers alone."""
