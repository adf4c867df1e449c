"""What does a scrape get? What is read of the database, what this process counts, and how both are written."""
