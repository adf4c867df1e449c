"""Tests of the starter project."""
