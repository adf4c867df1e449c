"""This project's own pipelines: handlers, as a user writes them."""
