"""A share group as a Dagster component: its `defs.yaml` becomes definitions with `share_group_defs`."""

from typing import Annotated

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import Field

from sharequeue.dagster.assets.accepted import Processing, process
from sharequeue.dagster.definitions import share_group_defs
from sharequeue.dagster.lineage import AssetData
from sharequeue.dagster.names import dagster_names
from sharequeue.dagster.scaffolder import ShareGroupScaffolder
from sharequeue.dagster.share_group import ShareGroup

_translation = TranslationFnResolver[AssetData](
    lambda data: {"asset": data.name, "group": data.group.group, "topics": list(data.group.topics)}
)


@dg.scaffold_with(ShareGroupScaffolder)
class ShareGroupComponent(ShareGroup, dg.Component):
    """A share group: its assets, checks, sensor, schedule and jobs, from a `defs.yaml`.

    ```yaml
    type: sharequeue.dagster.ShareGroupComponent
    attributes:
      group: orders
      topics: [orders]
      pipeline: my_pipelines.orders:handle
      configs: {share.auto.offset.reset: earliest, errors.deadletterqueue.topic.name: dlq.orders}
    ```

    Make your own subclass to change the appearance of assets (`get_asset_spec`) or the work of a run (`execute`):

    ```python
    class AuditedShareGroup(ShareGroupComponent):
        def execute(self, run):
            run.context.log.info("begun")
            return super().execute(run)
    ```
    """

    translation: Annotated[TranslationFn[AssetData], _translation] | None = Field(
        default=None,
        description="Keys, tags, groups, … of the assets, with `asset`, `group`, `topics` and `spec` in braces.",
    )

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the description for `dg list components` and Dagster's documentation pages."""
        return dg.ComponentTypeSpec(
            description="A Kafka share group as a batch queue for Spark, with dead letters, checks and reports.",
            tags=["kafka", "spark", "queue"],
        )

    def get_asset_spec(self, spec: dg.AssetSpec, data: AssetData) -> dg.AssetSpec:
        """Return the final spec of an asset; `spec` is the default one, `data.name` the asset's name."""
        return spec if self.translation is None else self.translation(spec, data)

    def execute(self, run: Processing) -> "dg.MaterializeResult[None]":
        """Do the work of the asset `accepted`. `run` has the context, the bounds and the resources."""
        return process(run)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions. Raises NameCollision if another share group has the same name in Dagster, and
        ValueError if another `defs.yaml` has this group too.
        """
        beside = [each.group for each in context.component_tree.get_all_components(ShareGroupComponent)]
        dagster_names(beside)
        if beside.count(self.group) > 1:
            raise ValueError(f"share group {self.group!r} is defined twice: keep one defs.yaml for it")
        # Next to the defs.yaml, whatever the working directory is.
        for field in ("suite", "data_docs"):
            if (given := getattr(self.dead_letters, field)) is not None:
                setattr(self.dead_letters, field, str(context.path / given))
        return share_group_defs(self, execute=self.execute, translate=self.get_asset_spec)


__all__ = ["ShareGroupComponent"]
