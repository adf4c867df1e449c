"""Commands with the arguments and the output of Kafka's own tools."""
