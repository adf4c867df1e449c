"""What a Dagster code location needs for a share group: assets' reports, checks, sensors, redrives, resources."""
