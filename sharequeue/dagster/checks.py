"""The asset checks of a share group on its dead letters.

There is one for each expectation of the suites, ours and the user's, and the reconciliation with Postgres. Each
continues in the topic (read_committed) where it ended; those that ended at the same position read together. Two use
Postgres alone: whether letters are held, and whether this week's letters are like last week's. The state itself is
checked in `state_checks`.

An error does not block unless `dead_letters.blocking` is set: a run writes its reports, and then checks,
even if something is wrong with its letters.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from sharequeue.dagster.quality import dead_letters
from sharequeue.dagster.quality.archived import ArchivedLetters
from sharequeue.dagster.quality.context import QualityContext
from sharequeue.dagster.quality.dead_letters import HEADERS, UNIQUE
from sharequeue.dagster.quality.drift import drift_of
from sharequeue.dagster.quality.examination import Examination, Examined, examine, finding
from sharequeue.dagster.quality.expectations import Expectation, check_specs, severity_of, suite_of
from sharequeue.dagster.quality.findings import (
    DOUBLED,
    INVENTED,
    MISSING,
    Cursor,
    Finding,
    Found,
    table_of_findings,
    together,
)
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import table
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.reports.data_docs import INDEX, context_folder, data_docs_address, site_folder
from sharequeue.state import State
from sharequeue.words.settings import Settings

RECONCILED = "reconciled_with_state"
NONE_HELD = "none_held"
DRIFT = "like_last_week"
PLACED = (RECONCILED, UNIQUE)
"""The checks that know how far each source partition is reconciled, to find a letter that is there twice."""

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
                context_folder(loaded, group.group),
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
                # Checks at one position have read the same letters.
                places=next((cursors[check].places for check in PLACED if check in checks), {}),
                most=config.max_letters or group.dead_letters.max_letters,
                context=None if checks == [RECONCILED] else gx,
                run_name=f"{group.name}-{context.run.run_id[:8]}-{number}",
            )
            context.log.info(
                f"read {examined.reading.letters:,} letters of {topic} for {len(checks)} checks: "
                f"{examined.ours:,} of {group.group}, {examined.foreign:,} of others; at most "
                f"{examined.reading.left:,} are left for the next run"
            )
            data_docs = _data_docs(settings, group.group, gx.folder)
            for each in (each for each in expectations if each.check in checks):
                found = (
                    _reconciled(examined)
                    if each.check == RECONCILED
                    else examined.by_check.get(each.check, Found())
                )
                result = _result(asset, each, topic, cursors[each.check], found, examined, data_docs)
                if not result.passed:
                    context.log.error(f"check {each.check} failed: {result.description}")
                yield result


def _data_docs(settings: Settings, group_id: str, folder: Path) -> dict[str, dg.MetadataValue[Any]]:
    """Return the link to the Data Docs at the service; without a service, their file."""
    index = site_folder(folder) / INDEX
    if not index.exists():
        return {}
    if settings.knows("service_url"):
        return {"data_docs": dg.MetadataValue.url(data_docs_address(settings, group_id))}
    return {"data_docs_file": dg.MetadataValue.path(index)}


def _result(
    asset: dg.AssetKey,
    expectation: Expectation,
    topic: str,
    cursor: Cursor,
    found: Found,
    examined: Examined,
    data_docs: Mapping[str, dg.MetadataValue[Any]],
) -> dg.AssetCheckResult:
    reading, check = examined.reading, expectation.check
    after = cursor.after(reading, examined.reconciled.next if check in PLACED else {}, found)
    counts = after.counts
    passed = found.passed and not counts
    metadata: dict[str, Any] = {
        "unexpected_records": counts.total(),
        "read_records": reading.letters,
        "group_records": examined.ours,
        "foreign_records": examined.foreign,
        "earlier_life_records": examined.earlier,
        "left_offsets": reading.left,
        "dead_letter_topic": topic,
    }
    if check == RECONCILED:
        metadata |= {
            "archived_records": examined.reconciled.archived,
            **{f"{kind}_records": counts[kind] for kind in (MISSING, INVENTED, DOUBLED)},
        }
    else:
        metadata |= {
            "elements_records": found.elements,
            "not_compared_records": examined.not_compared,
            "expectation": expectation.kind,
            **data_docs,
        }
    if check == HEADERS and examined.headers:
        rows = [(*wrong, letters) for wrong, letters in sorted(examined.headers.items())]
        metadata["headers"] = table({"header": "string", "problem": "string", "letters": "int"}, rows)
    if after.found:
        metadata["found"] = table_of_findings(after.found, topic)
    if found.problem:
        metadata["problem"] = found.problem
    metadata["cursor"] = after.metadata()
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=asset,
        check_name=check,
        severity=severity_of(expectation),
        description=expectation.description
        if passed
        else _what_failed(expectation, topic, found, counts, after),
        metadata=metadata,
    )


def _what_failed(
    expectation: Expectation, topic: str, found: Found, counts: Counter[str], after: Cursor
) -> str:
    """Return the check's message: how many letters fail, and the first record."""
    sentences = []
    if counts:
        kinds = [f"{number:,} {kind}" for kind, number in sorted(counts.items()) if kind]
        sentences.append(", ".join(kinds) if kinds else f"{counts.total():,} failed")
        if earlier := counts.total() - found.counts.total():
            sentences[0] += f" ({earlier:,} of them found by earlier runs)"
        if after.found:
            first = after.found[0]
            sentences[0] += f"; first record {first.record(topic)}: {first.found}"
    if found.problem:
        sentences.append(found.problem)
    if left := after.unlisted.total():
        sentences.append(f"{left:,} are not listed: `full: true` reads them again")
    return ". ".join([*sentences, f"Expected: {expectation.description}"])


def _reconciled(examined: Examined) -> Found:
    reconciled = examined.reconciled
    findings = [
        Finding(MISSING, None, None, source.topic, source.partition, place.offset, place.sequence)
        for source, place in reconciled.examples_missing
    ]
    findings += [finding(judged.letter, what) for what, judged in reconciled.examples_apart]
    counts = +Counter(
        {MISSING: reconciled.missing, INVENTED: reconciled.invented, DOUBLED: reconciled.doubled}
    )
    return Found(reconciled.archived, counts, findings, None, not counts)


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
