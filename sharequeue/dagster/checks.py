"""Which asset checks does a share group have?

On its dead letters the Great Expectations suite, one check per expectation, and the reconciliation with
Postgres, all from one reading of the topic (read_committed). On its SPSO-and-lag report the invariants of the
state itself. They never block: a run reports and checks in the end, and the checks show what is wrong with all
of it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import dagster as dg

from sharequeue.dagster.quality import dead_letters, expectations
from sharequeue.dagster.reports import table
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.state import State

RECONCILED = "reconciled_with_state"
NONE_HELD = "none_held"
STATE_VERIFIED = "state_verified"
LAG_NOT_NEGATIVE = "lag_not_negative"

_ANY_LIMIT = 1
"""For the names of the checks, which do not depend on the limit; a run reads the limit of its time."""


def dead_letter_checks(
    group: ShareGroup, asset: dg.AssetKey, after: Sequence[dg.AssetKey]
) -> dg.AssetChecksDefinition:
    """The checks on the dead letters of `group`, made after the assets `after` in a run."""
    group_id = group.group
    reconciled = dg.AssetCheckSpec(
        name=RECONCILED,
        asset=asset,
        description="The topic holds exactly the records that Postgres has as archived, each once.",
        additional_deps=list(after),
    )
    none_held = dg.AssetCheckSpec(
        name=NONE_HELD,
        asset=asset,
        description="No dead letter waits for its topic to be writable.",
        additional_deps=list(after),
    )
    suite = expectations.check_specs(asset, dead_letters.expectations(group_id, _ANY_LIMIT), after)

    @dg.multi_asset_check(name=f"{group.name}_dead_letter_suite", specs=[*suite, reconciled, none_held])
    def checks(
        context: dg.AssetCheckExecutionContext, settings: SettingsResource, queue: StateResource
    ) -> Iterator[dg.AssetCheckResult]:
        configs = GroupConfigs.load(queue.database, group_id)
        loaded, topic = settings.load(), configs.dead_letter_topic
        with Topics(loaded) as topics:
            info = topics.describe([topic]).get(topic) if topic else None
        letters = [] if info is None else list(read_dead_letters(loaded, topic))
        context.log.info(f"read {len(letters)} dead letters from {topic or 'no topic'}")
        frame = dead_letters.frame(letters, 1 if info is None else info.partitions)
        today = dead_letters.expectations(group_id, configs.delivery_count_limit)
        yield from expectations.evaluate(frame, asset, today, context.log.error)
        ours = frame[frame["group"] == group_id]
        yield _reconciliation(asset, dead_letters.reconcile(ours, written_offsets(queue.state, group_id)))
        yield _none_held(asset, queue.state, group_id)

    return checks


def _none_held(asset: dg.AssetKey, state: State, group_id: str) -> dg.AssetCheckResult:
    """Whether anything waits for its topic, and why: the reason of the last drain stays until a batch is written."""
    waiting = sum(status.archiving for status in state.figures.describe(group_id))
    reasons = sorted({held.reason for held in state.dead_letters.held(group_id)})
    why = "; ".join(reasons) or "no drain has been at them yet"
    return dg.AssetCheckResult(
        passed=waiting == 0,
        check_name=NONE_HELD,
        asset_key=asset,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{waiting:,} wait: {why}" if waiting else "every dead letter is written",
        metadata={"held_records": waiting},
    )


def state_checks(group: ShareGroup, asset: dg.AssetKey) -> dg.AssetChecksDefinition:
    """The checks of the state's own invariants, on the asset `asset`."""
    group_id = group.group

    @dg.multi_asset_check(
        name=f"{group.name}_state_invariants",
        specs=[
            dg.AssetCheckSpec(
                STATE_VERIFIED,
                asset=asset,
                description="Every invariant of the group's state holds: no offset has two leases, …",
            ),
            dg.AssetCheckSpec(
                LAG_NOT_NEGATIVE,
                asset=asset,
                description="The group has not processed more than the log holds.",
            ),
        ],
    )
    def checks(queue: StateResource) -> Iterator[dg.AssetCheckResult]:
        violations = queue.state.figures.verify(group_id)
        yield dg.AssetCheckResult(
            passed=not violations,
            check_name=STATE_VERIFIED,
            asset_key=asset,
            severity=dg.AssetCheckSeverity.ERROR,
            description="\n".join(violations) or "every invariant holds",
            metadata={"violations": len(violations)},
        )
        statuses = queue.state.figures.describe(group_id)
        ahead = [s for s in statuses if s.log_end - s.spso - s.delivery_complete_count < 0]
        yield dg.AssetCheckResult(
            passed=not ahead,
            check_name=LAG_NOT_NEGATIVE,
            asset_key=asset,
            severity=dg.AssetCheckSeverity.WARN,
            description="ahead of the log: " + ", ".join(str(s.share_partition) for s in ahead)
            if ahead
            else "no share-partition is ahead of its log",
            metadata={
                "lag_records": sum(s.lag for s in statuses),
                "ahead": table(
                    ahead, {"topic": "string", "partition": "int", "spso": "int", "log_end": "int"}
                ),
            },
        )

    return checks


def written_offsets(state: State, group_id: str) -> dict[tuple[str, int], OffsetSet]:
    """Per source topic-partition the offsets that Postgres has as written to the dead-letter topic."""
    offsets: dict[tuple[str, int], OffsetSet] = defaultdict(lambda: EMPTY)
    for run in state.dead_letters.written(group_id):
        if not run.dropped:
            offsets[run.share_partition.topic, run.share_partition.partition] |= run.offsets
    return dict(offsets)


def _reconciliation(asset: dg.AssetKey, found: dead_letters.Reconciliation) -> dg.AssetCheckResult:
    apart = [
        dg.TableRecord({"what": what, "topic": topic, "partition": partition, "offsets": str(offsets)[:500]})
        for what, where in (("missing", found.missing), ("invented", found.invented))
        for (topic, partition), offsets in where.items()
    ]
    return dg.AssetCheckResult(
        passed=found.agrees,
        check_name=RECONCILED,
        asset_key=asset,
        severity=dg.AssetCheckSeverity.ERROR,
        description="the topic and Postgres agree"
        if found.agrees
        else f"missing {sum(o.count for o in found.missing.values())}, "
        f"invented {sum(o.count for o in found.invented.values())}, doubled {found.doubled} records",
        metadata={
            "archived_records": found.archived,
            "dead_letter_records": found.written,
            "doubled_records": found.doubled,
            "apart": dg.MetadataValue.table(
                records=apart,
                schema=dg.TableSchema(
                    columns=[
                        dg.TableColumn("what", "string"),
                        dg.TableColumn("topic", "string"),
                        dg.TableColumn("partition", "int"),
                        dg.TableColumn("offsets", "string"),
                    ]
                ),
            ),
        },
    )
