"""Values, offsets, errors, names and settings for all other packages, of which it imports none."""
