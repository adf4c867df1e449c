"""What takes too long for every run: a million random steps, and every rule broken on purpose."""
