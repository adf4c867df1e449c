"""What a JVM of ours starts with: a Java, and sets of jars.

This package knows neither Spark nor the embedded stack.
"""
