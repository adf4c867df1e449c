"""Servers, proxies and certificates that tests start themselves."""
