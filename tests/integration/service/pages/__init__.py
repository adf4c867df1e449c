"""Tests of the service's pages."""
