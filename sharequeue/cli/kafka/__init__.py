"""The commands that take the arguments of Kafka's own tools, and print what those print."""
