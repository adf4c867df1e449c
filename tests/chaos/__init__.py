"""Tests that kill something."""
