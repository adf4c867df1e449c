"""The output of a pipeline, read without Spark: which files count, and their rows by Arrow.

`manifest` has the folders that count, for Spark's readers too. `dataset` opens them. `errors` has what a reader may
raise, and `stores` the file systems.
"""

from sharequeue.outputs.dataset import output_dataset

__all__ = ["output_dataset"]
