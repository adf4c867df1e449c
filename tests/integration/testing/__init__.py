"""Tests of the engine that users test with."""
