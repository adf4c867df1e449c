"""Tests of what the pages and the docs promise of the code."""
