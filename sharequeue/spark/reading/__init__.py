"""From leased offset ranges to one DataFrame: scans, records, topics, sizes of records."""
