"""The asset checks of a share group on its dead letters.

There is one for each expectation of the suites, ours and the user's, and the reconciliation with Postgres. They read
the topic (read_committed) in one pass, which continues where the last one ended. Two use Postgres alone: whether
letters are held, and whether this week's letters are like last week's. The state itself is checked in `state_checks`.

An error does not block unless `dead_letters.blocking` is set: a run writes its reports, and then checks,
even if something is wrong with its letters.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from sharequeue.dagster.names import SUITE_STEP
from sharequeue.dagster.quality import dead_letters
from sharequeue.dagster.quality.archived import ArchivedLetters
from sharequeue.dagster.quality.context import QualityContext
from sharequeue.dagster.quality.dead_letters import HEADERS
from sharequeue.dagster.quality.drift import drift_result
from sharequeue.dagster.quality.examination import RECONCILED, Examined, examine
from sharequeue.dagster.quality.expectations import Expectation, suite_of
from sharequeue.dagster.quality.findings import COLUMNS, DOUBLED, INVENTED, MISSING, Found, KeptFindings
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import table
from sharequeue.database import Database
from sharequeue.domain.names import plural
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.reports.data_docs import CREATED, INDEX, context_folder, data_docs_address, site_folder

NONE_HELD, DRIFT = "none_held", "like_last_week"

_RECONCILIATION = Expectation(
    RECONCILED,
    "The topic has exactly the records that Postgres has archived, each once, except those that the topic's "
    "retention has removed.",
)


class Examining(dg.Config):
    """The part of the topic that a run of the checks reads."""

    full: bool = Field(
        default=False, description="Forget all findings, and begin at the topic's start again."
    )
    max_letters: int | None = Field(
        default=None, ge=1, description="Letters to read; default: the value in the yaml."
    )
    accept: bool = Field(
        default=False,
        description="Acknowledge the earlier findings of the executed checks, so that they no longer fail them.",
    )


def dead_letter_checks(
    group: ShareGroup, asset: dg.AssetKey, after: Sequence[dg.AssetKey]
) -> dg.AssetChecksDefinition:
    """Build the checks on the dead letters of `group`, executed after the assets `after` in a run.

    Raises SuiteUnreadable if the user's suite cannot be read.
    """
    given = group.dead_letters
    user_suite = None if given.suite is None else Path(given.suite).absolute()
    built_in = dead_letters.expectations()
    taken = {each.check for each in expectations()}
    users = () if user_suite is None else suite_of(user_suite, taken)
    read = (*built_in, *users, _RECONCILIATION)

    @dg.multi_asset_check(
        name=f"{group.name}{SUITE_STEP}",
        specs=[
            dg.AssetCheckSpec(
                name=each.check,
                asset=asset,
                description=each.description,
                # A blocking check cannot wait for an asset that it blocks.
                additional_deps=[] if given.blocking else list(after),
                blocking=given.blocking and each.severity == "critical",
                metadata={"severity": each.severity},
            )
            for each in (*read, *(expectation for expectation, _ in _FROM_STATE))
        ],
        can_subset=True,
    )
    def checks(
        context: dg.AssetCheckExecutionContext,
        config: Examining,
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
    ) -> Iterator[dg.AssetCheckResult]:
        database, selected = (
            sharequeue_state.database,
            {key.name for key in context.selected_asset_check_keys},
        )
        if some := [each for each in read if each.check in selected]:
            settings = sharequeue_settings.load()
            created = database.rows(CREATED, group_id=group.group)
            gx = QualityContext(
                context_folder(settings, group.group),
                built_in,
                user_suite,
                users,
                created[0]["created_at"] if created else None,
            )
            yield from _read_checks(context, config, settings, database, group, asset, some, gx)
        for expectation, judge in _FROM_STATE:
            if expectation.check in selected:
                yield judge(sharequeue_state, group, asset)

    return checks


def _read_checks(
    context: dg.AssetCheckExecutionContext,
    config: Examining,
    settings: Settings,
    database: Database,
    group: ShareGroup,
    asset: dg.AssetKey,
    selected: Sequence[Expectation],
    gx: QualityContext,
) -> Iterator[dg.AssetCheckResult]:
    """Read the topic for all checks, and yield the results of the selected ones."""
    topic = GroupConfigs.load(database, group.group).dead_letter_topic
    kept = KeptFindings() if config.full else KeptFindings.of(context.instance, asset, group.group)
    for each in selected if config.accept else ():
        kept.found.pop(each.check, None)
    with Topics(settings) as topics:
        examined = examine(
            database,
            group.group,
            topic,
            topics,
            settings,
            kept,
            most=config.max_letters or group.dead_letters.max_letters,
            context=gx,
            run_name=f"{group.name}-{context.run.run_id[:8]}",
        )
    if examined is None:
        yield from (_without_topic(database, group.group, asset, topic, each) for each in selected)
        return
    kept.store(context.instance, asset)
    context.log.info(
        f"read {examined.letters:,} letters of {topic}: {examined.ours:,} of {group.group}; "
        + (examined.nothing_new or f"at most {examined.left:,} are left for the next run")
    )
    data_docs = _data_docs(settings, group.group, gx.folder)
    for hidden in examined.hidden:
        context.log.warning(str(hidden))
    for each in selected:
        result = _result(asset, each, topic, kept.found.get(each.check, Found()), examined, data_docs)
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
    found: Found,
    examined: Examined,
    data_docs: dict[str, dg.MetadataValue[Any]],
) -> dg.AssetCheckResult:
    check, counts = expectation.check, found.counts
    passed = not counts and found.problem is None
    metadata: dict[str, Any] = {
        "unexpected_records": counts.total(),
        "read_records": examined.letters,
        "group_records": examined.ours,
        "foreign_records": examined.letters - examined.ours,
        "deleted_group_records": examined.earlier,
        "not_compared_records": examined.not_compared,
        "left_offsets": examined.left,
        "dead_letter_topic": topic,
    }
    if check == RECONCILED:
        metadata["expected_records"] = examined.archived
        metadata |= {f"{kind}_records": counts[kind] for kind in (MISSING, INVENTED, DOUBLED)}
    else:
        metadata |= data_docs
    if check == HEADERS and examined.headers:
        rows = [(*wrong, letters) for wrong, letters in sorted(examined.headers.items())]
        metadata["headers"] = table({"header": "string", "problem": "string", "letters": "int"}, rows)
    if examined.hidden:
        metadata["hidden"] = [str(each) for each in examined.hidden]
    if found.findings:
        rows_found = (each.row(topic, examined.status(each)) for each in found.findings)
        metadata["found"] = table(COLUMNS, rows_found)
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=asset,
        check_name=check,
        severity=expectation.dagster_severity,
        description=". ".join(filter(None, (examined.nothing_new, expectation.description)))
        if passed
        else _what_failed(expectation, topic, found, examined.found.get(check, Found())),
        metadata=metadata,
    )


def _what_failed(expectation: Expectation, topic: str, found: Found, new: Found) -> str:
    """Return the check's message: how many letters fail, and the first record."""
    sentences = []
    if counts := found.counts:
        kinds = [f"{number:,} {kind}" for kind, number in sorted(counts.items()) if kind]
        fail = "fails" if counts.total() == 1 else "fail"
        sentences.append(", ".join(kinds) if kinds else f"{plural(counts.total(), 'letter')} {fail}")
        if earlier := counts.total() - new.counts.total():
            sentences[0] += f" ({earlier:,} of them found by earlier runs)"
        if found.findings:
            first = found.findings[0]
            what = "" if first.found in counts else f": {first.found}"
            sentences[0] += f"; first record {first.record(topic)}{what}"
    if found.problem:
        sentences.append(found.problem)
    if found.unlisted:
        sentences.append(f"{found.unlisted:,} are not listed")
    return ". ".join([*sentences, f"Expected: {expectation.description}"])


def _without_topic(
    database: Database, group_id: str, asset: dg.AssetKey, topic: str, expectation: Expectation
) -> dg.AssetCheckResult:
    """Return the result if there is no topic: passed, unless Postgres has recorded letters as written to it."""
    reconciles = topic and expectation.check == RECONCILED
    lost = ArchivedLetters(database, group_id).written() if reconciles else 0
    why = f"there is no topic {topic}" if topic else f"group {group_id} has no dead-letter topic"
    return dg.AssetCheckResult(
        passed=not lost,
        asset_key=asset,
        check_name=expectation.check,
        severity=expectation.dagster_severity,
        description=f"{why}, but Postgres has recorded {lost:,} letters as written to it" if lost else why,
        metadata={"unexpected_records": lost},
    )


def _none_held(state: StateResource, group: ShareGroup, asset: dg.AssetKey) -> dg.AssetCheckResult:
    """Check whether dead letters are held, and why.

    The reason of the last attempt stays until a batch is written.
    """
    waiting = sum(status.archiving for status in state.state.figures.describe(group.group))
    reasons = sorted({held.reason for held in state.state.dead_letters.held(group.group)})
    why = "; ".join(reasons) or "nothing has tried to write them yet"
    return dg.AssetCheckResult(
        passed=waiting == 0,
        check_name=NONE_HELD,
        asset_key=asset,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{waiting:,} wait: {why}" if waiting else "every dead letter is written",
        metadata={"held_records": waiting},
    )


def _like_last_week(state: StateResource, group: ShareGroup, asset: dg.AssetKey) -> dg.AssetCheckResult:
    return drift_result(state.database, group.group, group.dead_letters.drift, asset, DRIFT)


_Judge = Callable[[StateResource, ShareGroup, dg.AssetKey], dg.AssetCheckResult]
_FROM_STATE: tuple[tuple[Expectation, _Judge], ...] = (
    (
        Expectation(NONE_HELD, "No dead letter waits until its topic is writable.", severity="warning"),
        _none_held,
    ),
    (
        Expectation(
            DRIFT,
            "The number and the causes of this week's dead letters are similar to last week's.",
            severity="warning",
        ),
        _like_last_week,
    ),
)
"""The checks that use Postgres alone."""


def expectations() -> tuple[Expectation, ...]:
    """Return our checks on dead letters, in the order in which `docs/reference/checks.md` lists them."""
    return (*dead_letters.expectations(), _RECONCILIATION, *(expectation for expectation, _ in _FROM_STATE))
