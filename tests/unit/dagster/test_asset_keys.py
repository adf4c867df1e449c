"""Each asset of a queue has a key of its own, and a template fills in something."""

from __future__ import annotations

from typing import Annotated, Any

import dagster as dg
import pytest

from sharequeue.dagster import ShareGroup, ShareGroupComponent, share_group_defs, topic_assets
from sharequeue.dagster.names import GROUP_TAG
from tests.fixtures.dagster_yaml import MINIMAL, refused, with_letters

RAW = {"topic_translation": {"key": "raw/{{ topic }}"}}
LAKE = {"translation": {"key": "lake/{{ asset }}"}}


@pytest.mark.parametrize(
    ("queues", "messages"),
    [
        (
            [{**with_letters("orders", "orders", "dlq"), "topic_translation": {"key": "raw/all"}}],
            [
                "the topic 'dlq' (share group 'orders') and the topic 'orders'",
                "both get the asset key 'raw/all'",
            ],
        ),
        (
            [
                {**MINIMAL, "topic_translation": {"key": "raw/all"}},
                {**MINIMAL, "group": "audit", "topics": ["bills"], "topic_translation": {"key": "raw/all"}},
            ],
            ["the topic 'bills' (share group 'audit')", "'orders')", "such as `key: raw/{{ topic }}` in"],
        ),
        (
            [{**MINIMAL, **RAW}, {**MINIMAL, "group": "w", "topic_prefix": "west", **RAW}],
            [
                "the topic 'orders' of west (share group 'w')",
                "another `topic_prefix` stands for another Kafka",
            ],
        ),
        (
            [
                {
                    **MINIMAL,
                    "topic_assets": False,
                    **with_letters("a", "x", "y"),
                    "topic_translation": {"key": "z"},
                }
            ],
            ["both get the asset key 'z'"],
        ),
        ([{**MINIMAL, "topic_translation": {"key": "raw/{{ spec.tags.x }}"}}], ["'raw/' with the part ''"]),
        ([{**MINIMAL, "translation": {"key": "lake/ {{ asset }}"}}], ["with the part ' accepted': expected"]),
        (
            [{**MINIMAL, "translation": {"key": "x"}}],
            ["the asset 'dead_letters' of share group 'orders' both"],
        ),
        (
            [{**MINIMAL, **LAKE}, {**MINIMAL, "group": "b", **LAKE}],
            ["'lake/accepted'", "{{ group }}/{{ asset }}"],
        ),
        (
            [{**MINIMAL, "key_prefix": "x"}, {**MINIMAL, "group": "b", "key_prefix": "x"}],
            ["that no other queue"],
        ),
        (
            [{**MINIMAL, "topics": ["accepted"], "key_prefix": "kafka"}],
            ["the topic 'accepted' (share", "asset 'acc"],
        ),
        (
            [{**MINIMAL, "topic_translation": {"key": "raw/{{ topc }}"}}],
            ["topic_translation.key is 'raw/{{ topc }}': there is no variable 'topc'. Did you mean topic"],
        ),
        ([{**MINIMAL, "topic_translation": {"key": "x/{{ asset }}"}}], ["no variable 'asset'"]),
        (
            [{**MINIMAL, "translation": {"tags": {"a": "{{ topic }}"}}}],
            ["no variable 'topic'. Did you mean topics"],
        ),
        ([{**MINIMAL, "name": "q{{ stage }}"}], ["name is 'q{{ stage }}': there is no variable 'stage'"]),
        ([{**MINIMAL, "translation": {"key": "{{ asset"}}], ["which is not a template: unexpected end"]),
        ([{**MINIMAL, "topic_translation": "{{ 5 }}"}], ["topic_translation of the topic 'orders': "]),
        (
            [{**MINIMAL, "translation": {"tags": {GROUP_TAG: "x"}}}],
            ["sharequeue/group with 'x'", "are our own"],
        ),
    ],
)
def test_assets_that_would_become_one_are_refused(queues: list[dict[str, Any]], messages: list[str]) -> None:
    """With what has the key, and what to do: in one queue, and in several of a project. So are templates that would
    fill in nothing."""
    told = refused(*queues)
    assert [message for message in messages if message not in told] == []


def test_topics_of_queues_in_python_need_their_own_keys_too() -> None:
    class Merged(ShareGroup):
        def get_topic_spec(self, spec: dg.AssetSpec, topic: str) -> dg.AssetSpec:
            return spec.replace_attributes(key="all")

    queues = [Merged(**{**MINIMAL, "topics": [topic]}) for topic in ("a", "b")]
    with pytest.raises(
        ValueError, match=r"the topic 'a' .* and the topic 'b' .* both get the asset key 'all'"
    ):
        topic_assets(queues)
    with pytest.raises(ValueError, match="both get the asset key 'all'"):
        share_group_defs(Merged(**{**MINIMAL, "topics": ["a", "b"]}))


def test_a_subclass_may_have_variables_of_its_own() -> None:
    """What a field of its own has is its own matter; Jinja's functions are known."""

    class Noted(ShareGroupComponent):
        note: Annotated[str, dg.Resolver(lambda context, given: given, inject_before_resolve=False)] = ""

    model = Noted.get_model_cls()
    assert model is not None
    given = {**MINIMAL, "note": "{{ anything }}", "owners": ["team:{{ range(3) | first }}"]}
    component = Noted.load(model.model_validate(given), dg.ComponentTree.for_test().load_context)
    assert (component.note, component.owners) == ("{{ anything }}", ["team:0"])
