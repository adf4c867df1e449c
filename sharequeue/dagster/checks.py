"""The asset checks of a share group on its dead letters.

There is one for each expectation of the suites, ours and the user's, and the reconciliation with Postgres. Each
continues in the topic (read_committed) where it ended; those that ended at the same position read together. Two use
Postgres alone: whether letters are held, and whether this week's letters are like last week's. The state itself is
checked in `state_checks`.

An error does not block unless `dead_letters.blocking` is set: a run writes its reports, and then checks,
even if something is wrong with its letters.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
from pydantic import Field

from sharequeue.dagster.quality import dead_letters
from sharequeue.dagster.quality.archived import ArchivedLetters
from sharequeue.dagster.quality.context import QualityContext
from sharequeue.dagster.quality.drift import drift_of
from sharequeue.dagster.quality.examination import Examination, Examined, Found, examine, finding
from sharequeue.dagster.quality.expectations import Expectation, check_specs, severity_of, suite_of
from sharequeue.dagster.quality.findings import SHOWN, Cursor, Finding, table_of_findings, together
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from sharequeue.words.settings import Settings

RECONCILED = "reconciled_with_state"
NONE_HELD = "none_held"
DRIFT = "like_last_week"
CONTEXTS = "great_expectations"
"""The folder in the data folder with the groups' contexts."""

_RECONCILIATION = Expectation(
    check=RECONCILED,
    description="The topic has exactly the records that Postgres has archived, each once, except those that "
    "the topic's retention has removed.",
    kind="",
)


class Examining(dg.Config):
    """The part of the topic that a run of the checks reads."""

    full: bool = Field(default=False, description="Begin at the topic's start, not where the last run ended.")
    max_letters: int | None = Field(
        default=None, ge=1, description="Letters to read; default: the value in the yaml."
    )
    accept: bool = Field(
        default=False,
        description="Acknowledge the earlier findings, so that they no longer fail the checks.",
    )


def dead_letter_checks(
    group: ShareGroup, asset: dg.AssetKey, after: Sequence[dg.AssetKey]
) -> dg.AssetChecksDefinition:
    """Build the checks on the dead letters of `group`, executed after the assets `after` in a run.

    Raises SuiteUnreadable if the user's suite cannot be read.
    """
    given = group.dead_letters
    # A blocking check cannot wait for an asset that it blocks.
    after = () if given.blocking else after
    built_in = dead_letters.expectations()
    user_suite = None if given.suite is None else Path(given.suite).absolute()
    users = () if user_suite is None else suite_of(user_suite)[1]
    read = (*built_in, *users, _RECONCILIATION)
    from_state = (
        Expectation(NONE_HELD, "No dead letter waits until its topic is writable.", "", severity="warning"),
        Expectation(
            DRIFT,
            "The number and the causes of this week's dead letters are similar to last week's.",
            "",
            severity="warning",
        ),
    )

    @dg.multi_asset_check(
        name=f"{group.name}_dead_letter_suite",
        specs=check_specs(asset, [*read, *from_state], after, blocking=given.blocking),
        can_subset=True,
    )
    def checks(
        context: dg.AssetCheckExecutionContext,
        config: Examining,
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
    ) -> Iterator[dg.AssetCheckResult]:
        selected = {key.name for key in context.selected_asset_check_keys}
        some = [expectation for expectation in read if expectation.check in selected]
        if some:
            loaded = sharequeue_settings.load()
            gx = QualityContext(
                loaded.home / CONTEXTS / group.name,
                built_in,
                user_suite,
                users,
                None if given.data_docs is None else Path(given.data_docs).absolute(),
            )
            yield from _read_checks(context, config, loaded, sharequeue_state, group, asset, some, gx)
        if NONE_HELD in selected:
            yield _none_held(asset, sharequeue_state.state, group.group)
        if DRIFT in selected:
            yield drift_of(sharequeue_state.database, group.group, given.drift).result(asset, DRIFT)

    return checks


def _read_checks(
    context: dg.AssetCheckExecutionContext,
    config: Examining,
    settings: Settings,
    queue: StateResource,
    group: ShareGroup,
    asset: dg.AssetKey,
    expectations: Sequence[Expectation],
    gx: QualityContext,
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the checks that read the topic."""
    topic = GroupConfigs.load(queue.database, group.group).dead_letter_topic
    cursors = {
        each.check: Cursor.of(context.instance, dg.AssetCheckKey(asset, each.check), group.group)
        for each in expectations
    }
    with Topics(settings) as topics:
        examination = Examination.of(queue.database, group.group, topics, topic)
        if examination is None:
            yield from _without_topic(queue, group.group, asset, topic, expectations)
            return
        for cursor in cursors.values():
            cursor.begin(examination.info.topic_id, full=config.full)
            if config.accept:
                cursor.accept()
        for number, checks in enumerate(together(cursors), start=1):
            examined = examine(
                examination,
                settings,
                topics,
                first=cursors[checks[0]].next,
                places=cursors[RECONCILED].places if RECONCILED in checks else {},
                most=config.max_letters or group.dead_letters.max_letters,
                context=None if checks == [RECONCILED] else gx,
                run_name=f"{group.name}-{context.run.run_id[:8]}-{number}",
            )
            context.log.info(
                f"read {examined.reading.letters:,} letters of {topic} for {len(checks)} checks: "
                f"{examined.ours:,} of {group.group}, {examined.foreign:,} of others; at most "
                f"{examined.reading.left:,} are left for the next run"
            )
            for each in (each for each in expectations if each.check in checks):
                found = (
                    _reconciled(examined)
                    if each.check == RECONCILED
                    else examined.by_check.get(each.check, Found())
                )
                result = _result(asset, each, topic, cursors[each.check], found, examined, gx)
                if not result.passed:
                    context.log.error(f"check {each.check} failed: {result.description}")
                yield result


def _result(
    asset: dg.AssetKey,
    expectation: Expectation,
    topic: str,
    cursor: Cursor,
    found: Found,
    examined: Examined,
    gx: QualityContext,
) -> dg.AssetCheckResult:
    reading = examined.reading
    before = cursor.still(reading, examined.reconciled.next)
    findings, unlisted_before = [*found.findings, *before], cursor.still_unlisted(reading)
    unexpected = found.unexpected + len(before) + unlisted_before
    unlisted = max(0, unexpected - len(findings[:SHOWN]))
    after = Cursor(
        reading.info.topic_id,
        {**cursor.next, **reading.next},
        {**cursor.places, **examined.reconciled.next} if expectation.check == RECONCILED else {},
        findings[:SHOWN],
        unlisted,
    )
    if unlisted > unlisted_before:
        after.unlisted_before = dict(after.next)
    elif unlisted:
        after.unlisted_before, after.unlisted_from = cursor.unlisted_before, cursor.reread(reading)
    passed = found.passed and not findings and not unlisted_before
    metadata: dict[str, dg.MetadataValue | int | str] = {
        "unexpected_records": unexpected,
        "read_records": reading.letters,
        "group_records": examined.ours,
        "foreign_records": examined.foreign,
        "earlier_life_records": examined.earlier,
        "left_offsets": reading.left,
        "dead_letter_topic": topic,
    }
    if expectation.check == RECONCILED:
        metadata |= {
            "archived_records": examined.reconciled.archived,
            "missing_records": examined.reconciled.missing,
            "invented_records": examined.reconciled.invented,
            "doubled_records": examined.reconciled.doubled,
        }
    else:
        metadata |= {"elements_records": found.elements, "expectation": expectation.kind}
        if gx.index.exists():
            metadata["data_docs"] = dg.MetadataValue.url(gx.index.as_uri())
    if expectation.altered:
        metadata["not_compared_records"] = examined.not_compared
    if findings:
        metadata["found"] = table_of_findings(
            findings, topic, shown_only=expectation.altered or expectation.doubled
        )
    if found.problem:
        metadata["problem"] = found.problem
    metadata["cursor"] = after.metadata()
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=asset,
        check_name=expectation.check,
        severity=severity_of(expectation),
        description=expectation.description
        if passed
        else _what_failed(expectation, found, len(before), unlisted_before),
        metadata=metadata,
    )


def _what_failed(expectation: Expectation, found: Found, before: int, unlisted: int) -> str:
    if found.problem:
        return f"{found.problem}. Expected: {expectation.description}"
    sentences = []
    if found.unexpected:
        letters = "1 letter breaks" if found.unexpected == 1 else f"{found.unexpected:,} letters break"
        sentences.append(f"{letters} it.")
    if before:
        sentences.append(f"{before} earlier findings are still there.")
    if unlisted:
        sentences.append(f"{unlisted:,} earlier findings are not listed: read them again with `full: true`.")
    return " ".join([*sentences, f"Expected: {expectation.description}"])


def _reconciled(examined: Examined) -> Found:
    reconciled = examined.reconciled
    findings = [
        Finding("missing", None, None, source.topic, source.partition, place.offset, place.sequence)
        for source, place in reconciled.examples_missing
    ]
    findings += [finding(judged.letter, what) for what, judged in reconciled.examples_apart]
    wrong = reconciled.missing + reconciled.invented + reconciled.doubled
    return Found(reconciled.archived, wrong, findings, None, wrong == 0)


def _without_topic(
    queue: StateResource, group_id: str, asset: dg.AssetKey, topic: str, expectations: Sequence[Expectation]
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results if there is no topic: passed, unless Postgres has recorded letters as written to it."""
    archived = ArchivedLetters(queue.database, group_id)
    written = sum(
        batch.offsets.count
        for source, span in archived.spans(archived.now()).items()
        for batch in archived.since(source, 1, span.last_closed)
        if topic and not batch.dropped
    )
    for each in expectations:
        lost = written if each.check == RECONCILED else 0
        why = f"there is no topic {topic}" if topic else f"group {group_id} has no dead-letter topic"
        yield dg.AssetCheckResult(
            passed=not lost,
            asset_key=asset,
            check_name=each.check,
            severity=severity_of(each),
            description=f"{why}, but Postgres has recorded {lost:,} letters as written to it"
            if lost
            else why,
            metadata={"unexpected_records": lost},
        )


def _none_held(asset: dg.AssetKey, state: State, group_id: str) -> dg.AssetCheckResult:
    """Check whether dead letters are held, and why.

    The reason of the last drain stays until a batch is written.
    """
    waiting = sum(status.archiving for status in state.figures.describe(group_id))
    reasons = sorted({held.reason for held in state.dead_letters.held(group_id)})
    why = "; ".join(reasons) or "no drain has tried to write them yet"
    return dg.AssetCheckResult(
        passed=waiting == 0,
        check_name=NONE_HELD,
        asset_key=asset,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{waiting:,} wait: {why}" if waiting else "every dead letter is written",
        metadata={"held_records": waiting},
    )
