"""The files of a lease: their folders, the manifest of those that count, and their compaction."""
