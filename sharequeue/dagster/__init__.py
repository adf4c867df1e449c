"""What a Dagster code location needs for a share group: assets' reports, checks, sensors, redrives, resources.

Needs the extra `dagster`.
"""

from sharequeue.extras import require

require("dagster", "dagster", "great_expectations", "matplotlib")
