"""A share group as a Dagster component: its `defs.yaml` becomes definitions with `share_group_defs`."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Self

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field, PrivateAttr

from sharequeue.dagster.asset_keys import require_own_keys
from sharequeue.dagster.assets.accepted import process
from sharequeue.dagster.assets.processing import Processing
from sharequeue.dagster.definitions import share_group_defs
from sharequeue.dagster.lineage import AssetData, Lineage, topics_of, written_topics
from sharequeue.dagster.names import NameCollision
from sharequeue.dagster.scaffolder import ShareGroupScaffolder
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.templates import require_known_variables
from sharequeue.dagster.yaml_schema import with_plain_schema


@dataclass(frozen=True, slots=True)
class TopicData:
    """A topic, for a translation: its name and a group that uses it."""

    topic: str
    group: ShareGroup


_translation = TranslationFnResolver[AssetData](
    lambda data: {"asset": data.name, "group": data.group.group, "topics": list(data.group.topics)}
)

_VARIABLES = {
    "translation": ("asset", "group", "topics", "spec"),
    "topic_translation": ("topic", "group", "spec"),
}
"""The variables of a translation, in addition to those of the whole file."""

_topic_translation = TranslationFnResolver[TopicData](
    lambda data: {"topic": data.topic, "group": data.group.group}
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

    topic_translation: Annotated[TranslationFn[TopicData], _topic_translation] | None = Field(
        default=None,
        description="The same for the assets of topics, with `topic`, `group` and `spec` in braces.",
    )

    topic_assets: bool = Field(
        default=True,
        description="Whether the topics' external assets are defined; `false` if your own code defines them all.",
    )

    _place: str = PrivateAttr(default="")
    _kept: Lineage | None = PrivateAttr(default=None)

    @classmethod
    def get_model_cls(cls) -> type[BaseModel] | None:
        """Return the model of the attributes; its JSON schema names the wrong field and the expected value."""
        model = super().get_model_cls()
        return None if model is None else with_plain_schema(model)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Load the attributes. Raises ValueError with the group, and the line of the wrong field."""
        tree = context.resolution_context.source_position_tree
        group = tree and tree.children["attributes"].children.get("group")
        try:
            _require_known_variables(cls, attributes, context.resolution_context.scope)
            component = super().load(attributes, context)
        except Exception as error:
            raise ValueError(f"share group {getattr(attributes, 'group', None)!r}: {error}") from error
        if group:
            component._place = f"{group.position.filename}:{group.position.start.line}"
        return component

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the description for `dg list components` and Dagster's documentation pages."""
        return dg.ComponentTypeSpec(
            description="A Kafka share group as a batch queue for Spark, with dead letters, checks and reports.",
            tags=["kafka", "spark", "queue"],
        )

    def get_asset_spec(self, spec: dg.AssetSpec, data: AssetData) -> dg.AssetSpec:
        """Return the final spec of an asset; `spec` is the default one, `data.name` the asset's name."""
        if self.translation is None:
            return spec
        with _named(f"translation of the asset {data.name!r}"):
            return self.translation(spec, data)

    def get_topic_spec(self, spec: dg.AssetSpec, topic: str) -> dg.AssetSpec:
        """Return the final spec of a topic's asset; `spec` is the default one, which may have a key only."""
        if self.topic_translation is None:
            return spec
        with _named(f"topic_translation of the topic {topic!r}"):
            return self.topic_translation(spec, TopicData(topic, self))

    def execute(self, run: Processing) -> "dg.MaterializeResult[None]":
        """Do the work of the asset `accepted`. `run` has the context, the bounds and the resources."""
        return process(run)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions. Raises NameCollision if another share group has the same name in Dagster, and
        ValueError if another `defs.yaml` has this group too, or two assets of these queues have one key.
        """
        beside = context.component_tree.get_all_components(ShareGroupComponent)
        same = [each for each in beside if each.group == self.group]
        if len(same) > 1:
            raise ValueError(
                f"share group {self.group!r} is defined twice: keep one defs.yaml for it ({_places(same)})"
            )
        same = [each for each in beside if each.name == self.name]
        if len(same) > 1:
            first, second, *_ = sorted(each.group for each in same)
            raise NameCollision(self.name, first, second, _places(same))
        # Next to the defs.yaml, whatever the working directory is.
        if self.dead_letters.suite is not None:
            self.dead_letters.suite = str(context.path / self.dead_letters.suite)
        lineages = [each._lineage() for each in beside]
        require_own_keys(lineages)
        topics = topics_of(lineages, self._topics(beside))
        return share_group_defs(self, execute=self.execute, translate=self.get_asset_spec, topics=topics)

    def _lineage(self) -> Lineage:
        """Return its lineage, of which the other queues ask as well: what is translated once is kept."""
        if self._kept is None or self._kept.group is not self:
            self._kept = Lineage(self, self.get_asset_spec)
        return self._kept

    def _topics(self, queues: Sequence["ShareGroupComponent"]) -> list[dg.AssetKey]:
        """Return the topics that this queue defines: of all queues with a topic, the first by name defines it."""
        first: dict[dg.AssetKey, str] = {}
        for each in queues:
            for topic in {*each.topics, *written_topics(each).values()} if each.topic_assets else ():
                key = each._lineage().topic_key(topic)
                first[key] = min(first.get(key, each.group), each.group)
        return [key for key, group in first.items() if group == self.group]


def _require_known_variables(
    component: type[ShareGroupComponent], attributes: BaseModel | None, scope: Mapping[str, Any]
) -> None:
    """Raise ValueError for an unknown variable in a template. Fields that a subclass has declared are left out: they
    may have variables of their own.
    """
    ours = component.mro()[: component.mro().index(ShareGroupComponent)]
    others = {name for each in ours for name in inspect.get_annotations(each)}
    given = {} if attributes is None else attributes.model_dump(exclude_unset=True)
    for name, value in given.items():
        if name in ShareGroupComponent.model_fields and name not in others:
            require_known_variables(name, value, [*scope, *_VARIABLES.get(name, ())])


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Name the field and the asset in errors of a translation, of which Dagster's say nothing."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {error}") from error


def _places(components: Sequence[ShareGroupComponent]) -> str:
    """Return the files and lines of components."""
    return ", ".join(sorted(each._place for each in components))


__all__ = ["ShareGroupComponent"]
