"""An attack on the SQL functions by transactions of many calls, judged by their answers alone."""
