"""Find the letters whose records have rows in the output of their group, because a replay with them was published.

The group would have such a record twice if it were redriven. The opposite is in `redriven_records`: a publication
leaves out what was redriven.
"""

from __future__ import annotations

from collections.abc import Mapping

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive.batches import Published, RedriveBatches
from sharequeue.deadletters.redrive.selection import LetterPosition, RedriveRefused
from sharequeue.kafka.topics import Topics, is_same


class PublishedRecords:
    """The published records of the groups that a redrive to `target` (None: each record's own topic) would reach."""

    def __init__(
        self, batches: RedriveBatches, topics: Topics, target: str | None, only_group: str | None
    ) -> None:
        found = batches.published()
        there = topics.describe({each.topic for each in found})
        targets = {target} if target else {each.topic for each in found}
        readers: Mapping[str, set[str]] = batches.groups_of(targets) if found else {}
        self._found: dict[tuple[str, str, int], list[Published]] = {}
        for each in found:
            comes_back = each.group_id in readers.get(target or each.topic, ())
            if (
                comes_back
                and only_group in (None, each.group_id)
                and is_same(there, each.topic, each.topic_id)
            ):
                self._found.setdefault((each.group_id, each.topic, each.partition), []).append(each)

    def has(self, letter: DeadLetter) -> bool:
        """Return whether a letter's record was published.

        Raises RedriveRefused if a replay with it is being published: then nobody knows yet.
        """
        at = LetterPosition.of(letter)
        named = self._found.get((letter.group or "", at.topic, at.source_partition), ())
        found = [
            each
            for each in named
            if at.source_offset in each.offsets and at.topic_id in (None, each.topic_id)
        ]
        for each in found:
            if not each.is_done:
                raise RedriveRefused(
                    f"replay {each.replay} of group {each.group_id}, with records of these letters, is being "
                    f"published by {each.requested_by} since {each.begun_at:%Y-%m-%d %H:%M:%S %Z}: the group would "
                    "have them twice. Redrive when it has ended. If its process is gone, publish it again: "
                    "`sharequeue publish`."
                )
        return bool(found)
