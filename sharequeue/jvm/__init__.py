"""What a JVM of ours starts with: a Java, an archive of classes, sets of jars; and where a kept one stands.

Neither Spark nor the embedded stack is known here: both ask.
"""
