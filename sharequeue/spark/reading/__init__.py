"""Turn leased offset ranges into one DataFrame: scans, records, topics, sizes of records."""
