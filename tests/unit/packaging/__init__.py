"""Tests of the wheel's names and of the lock files."""
