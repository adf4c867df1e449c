"""A share group in Dagster: assets, checks, a sensor, a schedule and jobs, from a `defs.yaml`.

For a code location:

- a queue: `ShareGroupComponent` in a `defs.yaml`; or, without YAML, `share_group_defs` of a `ShareGroup`, and
  `topic_assets` of several;
- the resources of its definitions: `SettingsResource`, `StateResource`, `SparkResource`, and `OutputIOManager`, which
  loads an output for an asset downstream; `share_group_resources` returns them together;
- to change a run or the appearance of assets: `Processing`, the argument of `ShareGroupComponent.execute`, and
  `AssetData` and `TopicData`;
- for jobs of your own: `build_share_group_asset_selection`, `build_schedule_from_share_group_selection`.

Needs the extra `dagster`. Importing it loads Dagster, but neither Spark nor Great Expectations.
"""

from sharequeue.domain.extras import require

require("dagster", "dagster", "great_expectations")

from sharequeue.dagster.asset_keys import topic_assets
from sharequeue.dagster.assets.processing import Processing
from sharequeue.dagster.component import ShareGroupComponent, TopicData
from sharequeue.dagster.definitions import share_group_defs
from sharequeue.dagster.io_manager import OutputIOManager
from sharequeue.dagster.lineage import AssetData
from sharequeue.dagster.location import share_group_resources
from sharequeue.dagster.names import NameCollision
from sharequeue.dagster.resources import (
    SettingsResource,
    SparkResource,
    StateResource,
)
from sharequeue.dagster.selections import (
    build_schedule_from_share_group_selection,
    build_share_group_asset_selection,
)
from sharequeue.dagster.share_group import ShareGroup

__all__ = [
    "AssetData",
    "NameCollision",
    "OutputIOManager",
    "Processing",
    "SettingsResource",
    "ShareGroup",
    "ShareGroupComponent",
    "SparkResource",
    "StateResource",
    "TopicData",
    "build_schedule_from_share_group_selection",
    "build_share_group_asset_selection",
    "share_group_defs",
    "share_group_resources",
    "topic_assets",
]
