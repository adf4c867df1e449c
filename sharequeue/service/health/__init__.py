"""The current faults with their age, and the checks of the database and the broker."""
