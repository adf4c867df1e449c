"""Dead letters put back from Dagster: a dry run first, then each once, with figures in the asset's metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from sharequeue.dagster.checks import dead_letter_checks
from sharequeue.dagster.quality.examination import RECONCILED
from sharequeue.dagster.redrive import redrive_job
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.domain.offsets import OffsetSet
from sharequeue.local.stack import StackInfo
from tests.fixtures.dagster import share_group
from tests.fixtures.deadletters import GivenUp

LETTERS, REDRIVEN = dg.AssetKey("letters"), dg.AssetKey("redriven")
Launch = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def case(given_up: Callable[..., GivenUp]) -> GivenUp:
    """Give a group with ten dead letters, copied, of two partitions."""
    made = given_up(partitions=2, copy=True)
    made.produce(20, partitions=2, headers=[("kind", b"refund")])
    made.reject({0: OffsetSet.of((0, 6)), 1: OffsetSet.of((2, 6))})
    made.writer().write()
    return made


@pytest.fixture
def definitions(stack: StackInfo, case: GivenUp) -> dg.Definitions:
    """Give the redrive's job, and the checks on the letters that it sends, with their job."""
    settings = SettingsResource(home=str(stack.home))
    group = share_group(case.group)
    return dg.Definitions(
        assets=[dg.AssetSpec(REDRIVEN), dg.AssetSpec(LETTERS)],
        asset_checks=[dead_letter_checks(group, LETTERS, after=[])],
        jobs=[
            redrive_job(group, REDRIVEN),
            dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks()),
        ],
        resources={"sharequeue_settings": settings, "sharequeue_state": StateResource(settings=settings)},
    )


@pytest.fixture
def launch(definitions: dg.Definitions) -> Launch:
    """Give a function that runs the job in this process, with the config given."""

    def run(raise_on_error: bool = True, **config: object) -> dg.ExecuteInProcessResult:
        (job,) = (each for each in definitions.resolve_all_job_defs() if each.name.endswith("_redrive"))
        (node,) = job.nodes
        return job.execute_in_process(
            run_config={"ops": {node.name: {"config": config}}}, raise_on_error=raise_on_error
        )

    return run


def figures(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the figures of the one event of the asset: an observation for a dry run, else a materialization."""
    seen = [event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()]
    events: list[dg.AssetObservation | dg.AssetMaterialization] = [*seen]
    events += [event.materialization for event in result.get_asset_materialization_events()]
    (one,) = events
    assert one.asset_key == REDRIVEN
    found = {name: value.value for name, value in one.metadata.items()}
    assert found["dry_run"] == bool(seen)
    return found


def ends(case: GivenUp) -> int:
    return sum(log.log_end for log in case.topics.offsets(case.topic).values())


def test_a_redrive_without_a_config_is_a_dry_run(case: GivenUp, launch: Launch) -> None:
    """The default is a dry run over all of the group's letters."""
    before = ends(case)
    told = figures(launch())
    assert (told["dry_run"], told["chosen_records"], told["sent_records"]) == (True, 10, 0)
    assert [record.data for record in told["by_target"].records] == [{"target": case.topic, "letters": 10}]
    assert [record.data for record in told["by_cause"].records] == [{"cause": "rejected", "letters": 10}]
    assert ends(case) == before


def test_a_redrive_sends_the_chosen_letters_once(
    case: GivenUp, launch: Launch, definitions: dg.Definitions
) -> None:
    """Chosen by source, place and header; a second run finds that it was sent, and sends the rest. The checks on the
    dead letters pass afterwards: a letter that was put back is still the letter of its record."""
    chosen: dict[str, Any] = {
        "execute": True,
        "source_partition": 0,
        "header": "kind=refund",
        "cause": "rejected",
    }
    letters = [letter for letter in case.letters() if letter.source_partition == 0]
    first, last = letters[0].offset, letters[3].offset
    told = figures(launch(offsets=[f"{letters[0].partition}:{first}-{last}"], **chosen))
    assert (told["dry_run"], told["chosen_records"], told["sent_records"], told["gone_records"]) == (
        False,
        4,
        4,
        0,
    )
    assert told["selection"].startswith("cause rejected, group ")
    told = figures(launch(execute=True, since="2020-01-01"))
    assert (told["sent_records"], told["sent_before_records"]) == (6, 4)
    told = figures(launch(execute=True, until="2020-01-01T00:00:00+02:00"))
    assert (told["chosen_records"], told["sent_before_records"]) == (0, 0)
    rows = case.database.rows(
        sa.text(
            "select sent from sharequeue.redrives where dead_letter_topic = :topic order by requested_at"
        ),
        topic=case.dead_letter_topic,
    )
    assert [row["sent"] for row in rows] == [4, 6, 0]
    checked = definitions.resolve_job_def("checks").execute_in_process()
    verdicts = {each.check_name: each.passed for each in checked.get_asset_check_evaluations()}
    assert verdicts[RECONCILED]
    assert all(verdicts.values())


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"cause": "bored"}, "expected rejected or exhausted"),
        ({"header": "kind"}, "expected NAME=VALUE"),
        ({"offsets": ["0:9-3"]}, "expected PARTITION:OFFSET or PARTITION:FIRST-LAST"),
        ({"since": "yesterday"}, "Invalid isoformat string"),
        ({"target": "nowhere", "execute": True}, "there is no topic 'nowhere' to send to"),
    ],
)
def test_an_invalid_config_of_a_redrive_sends_nothing(
    case: GivenUp, launch: Launch, config: dict[str, object], says: str
) -> None:
    """A config that cannot be meant fails the run with what was expected, and nothing moves."""
    before = ends(case)
    result = launch(raise_on_error=False, **config)
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert says in str(failure.step_failure_data.error)
    assert ends(case) == before
