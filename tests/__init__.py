"""The tests; README.md is their manual."""
