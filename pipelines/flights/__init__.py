"""The example: a year of real flights as a queue. `records` fills the topic, `pipeline` processes it."""
