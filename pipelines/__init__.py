"""This project's own pipelines: handlers as a user would write them."""
