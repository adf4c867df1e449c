"""Benchmarks of the library against named peers and limits, one case per module.

``python -m benchmarks`` lists the cases, ``python -m benchmarks P8 --full`` runs one. A case is a function that
yields tables (``harness.case``): its parameters have the sizes of the goal, the decorator has those of the short
form. ``harness`` runs sides in turn and prints; ``database`` starts a Postgres, ``stack`` Kafka and Spark;
``share_groups`` reads topics with the broker's own share groups.
"""
