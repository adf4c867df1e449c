"""When each alert begins and ends, in minutes from the beginning of the series that `promtool test rules` is given.

There is one sample a minute. A scrape without a series makes it `stale`, as while the database does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UP = {'up{job="sharequeue",instance="a"}': "1x600", "sharequeue_database_up": "1x600"}


@dataclass(frozen=True)
class Case:
    """Series, and whether an alert fires at some minutes."""

    name: str
    alert: str
    series: Mapping[str, str]
    fires: Mapping[int, int]
    """How many series of the alert fire, by minute."""

    def written(self, rules: Path) -> dict[str, Any]:
        """Return it as promtool reads it."""
        given = {**_UP, **self.series}
        query = f'count(ALERTS{{alertname="Sharequeue{self.alert}",alertstate="firing"}}) or vector(0)'
        return {
            "rule_files": [str(rules)],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [{"series": name, "values": values} for name, values in given.items()],
                    "promql_expr_test": [
                        {
                            "expr": query,
                            "eval_time": f"{minute}m",
                            "exp_samples": [{"labels": "{}", "value": number}],
                        }
                        for minute, number in self.fires.items()
                    ],
                }
            ],
        }


def _faults(kind: str, values: str) -> dict[str, str]:
    return {f'sharequeue_faults{{kind="{kind}",instance="a"}}': values}


def _age(kind: str, values: str) -> dict[str, str]:
    return {f'sharequeue_fault_age_seconds{{kind="{kind}",instance="a"}}': values}


def _group(name: str, values: str) -> dict[str, str]:
    """One figure of a group, the same on two replicas."""
    return {
        f'sharequeue_group_{name}{{group="g",instance="a"}}': values,
        f'sharequeue_group_{name}{{group="g",instance="b"}}': values,
    }


def _of_partition(name: str, values: str) -> dict[str, str]:
    return {f'sharequeue_share_partition_{name}{{group="g",topic="t",partition="0",instance="a"}}': values}


_EPOCHS = "kafka_server_group_coordinator_metrics_share_group_rebalance_count"
_LETTERS = "kafka_server_sharegroupmetrics_deadletterqueuerecordcount"
_LAPSED = "kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total"
_BUCKET = "sharequeue_request_duration_seconds_bucket"
_HEARTBEAT = 'operation="share-group-heartbeat",instance="a"'
_GONE = {'up{job="sharequeue",instance="a"}': "1x10 0x5 1x20"}

CASES = (
    Case("a replica is away", "ServiceDown", _GONE, {10: 0, 11: 0, 12: 1, 16: 1, 17: 0}),
    Case(
        "no replica is found",
        "ServiceDown",
        {'up{job="sharequeue",instance="a"}': "1x10 stale"},
        {10: 0, 11: 0, 12: 1, 60: 1},
    ),
    Case(
        "the database is away for one of two",
        "DatabaseDown",
        {
            "sharequeue_database_up": "_x60",
            'sharequeue_database_up{instance="a"}': "1x60",
            'sharequeue_database_up{instance="b"}': "1x9 0x4 1x20",
        },
        {9: 0, 10: 0, 11: 1, 14: 1, 15: 0},
    ),
    Case("Kafka is away", "KafkaUnreachable", _faults("watch", "0x9 1x9 0x20"), {11: 0, 12: 1, 19: 1, 20: 0}),
    Case(
        "the database is away, and so the watch",
        "KafkaUnreachable",
        {**_faults("watch", "0x9 1x10 0x20"), "sharequeue_database_up": "1x9 0x9 1x20"},
        {12: 0, 15: 0, 19: 0, 20: 0, 22: 0},
    ),
    Case("nobody watches", "WorkLate", _faults("watch_late", "0x9 1x9 0x20"), {10: 0, 11: 1, 19: 1, 20: 0}),
    Case("a group is locked", "FaultStays", _age("group", "0+60x20 _x20"), {6: 0, 7: 1, 20: 1, 30: 0}),
    Case(
        "the database is away, and so all work",
        "FaultStays",
        {**_age("sweep", "0+60x20 _x20"), "sharequeue_database_up": "0x20 1x20"},
        {7: 0, 20: 0},
    ),
    Case(
        "heartbeats are refused",
        "HeartbeatsRefused",
        {
            'sharequeue_heartbeats_total{error_code="15",instance="a"}': "0x9 5+5x4 25x40",
            'sharequeue_heartbeats_total{error_code="0",instance="a"}': "0+60x60",
        },
        {9: 0, 11: 0, 12: 1, 14: 1, 18: 1, 20: 0},
    ),
    Case(
        "a replica is restarted after it had refused some",
        "HeartbeatsRefused",
        {'sharequeue_heartbeats_total{error_code="15",instance="a"}': "25x9 0x40"},
        {5: 0, 9: 0, 12: 0, 15: 0},
    ),
    Case(
        "heartbeats are slow",
        "HeartbeatsSlow",
        {
            f'{_BUCKET}{{{_HEARTBEAT},le="1.0"}}': "0+60x9 540x10 540+60x60",
            f'{_BUCKET}{{{_HEARTBEAT},le="2.5"}}': "0+60x80",
            f'{_BUCKET}{{{_HEARTBEAT},le="+Inf"}}': "0+60x80",
        },
        {9: 0, 13: 0, 17: 1, 20: 1, 30: 0},
    ),
    Case(
        "a record is old, and the database is away for three minutes",
        "RecordsTooOld",
        _group("oldest_record_age_seconds", "86000+60x20 stale _x2 87440+60x6 stale"),
        {11: 0, 12: 1, 20: 1, 22: 1, 25: 1, 30: 1, 34: 1, 36: 0},
    ),
    Case(
        "a group begins with much to do, and is quick",
        "DrainsTooSlowly",
        {
            **_group("lag", "1000000x1 1000000-1500x300"),
            **_group("finished_records_total", "0x1 0+1500x300"),
        },
        {5: 0, 20: 0, 60: 0, 90: 0},
    ),
    Case(
        "a group is slow",
        "DrainsTooSlowly",
        {**_group("lag", "1000000x200 0x60"), **_group("finished_records_total", "0+6x260")},
        {30: 0, 59: 0, 62: 1, 200: 1, 204: 1, 208: 0},
    ),
    Case(
        "retention comes near",
        "RetentionNear",
        {
            **_of_partition("start_offset", "50000x600"),
            **_of_partition("log_start_offset", "0+100x300 30000x300"),
            **_of_partition("lag", "500x300 0x300"),
        },
        {60: 0, 250: 0, 257: 1, 300: 1, 304: 1, 307: 0},
    ),
    Case(
        "retention removes a segment a day",
        "RetentionNear",
        {
            **_of_partition("start_offset", "3000000x600"),
            **_of_partition("log_start_offset", "0x100 1000000x500"),
            **_of_partition("lag", "500x600"),
        },
        {102: 0, 110: 0, 160: 0, 400: 0},
    ),
    Case(
        "records are lost, and the group is deleted",
        "RecordsLost",
        _group("lost_records_total", "0x9 30x10 stale"),
        {9: 0, 10: 1, 30: 1, 60: 1, 75: 0},
    ),
    Case(
        "records are lost while the only replica is replaced by one with another address",
        "RecordsLost",
        {
            'sharequeue_group_lost_records_total{group="g",instance="a"}': "0x20 stale",
            'sharequeue_group_lost_records_total{group="g",instance="b"}': "_x24 30x100",
        },
        {20: 0, 26: 1, 60: 1, 90: 0},
    ),
    Case(
        "records were lost long ago, and the group is deleted and made again",
        "RecordsLost",
        _group("lost_records_total", "30x100 _x2 0x100"),
        {49: 0, 106: 0, 130: 0},
    ),
    Case(
        "a replica begins that shows an old loss",
        "RecordsLost",
        {
            'sharequeue_group_lost_records_total{group="g",instance="a"}': "30x200",
            'sharequeue_group_lost_records_total{group="g",instance="b"}': "_x50 30x200",
        },
        {49: 0, 51: 0, 60: 0},
    ),
    Case(
        "a lease is stuck",
        "StuckLease",
        _group("stuck_leases", "0x9 1x20 0x30"),
        {19: 0, 20: 1, 30: 1, 34: 1, 37: 0},
    ),
    Case(
        "locks lapse",
        "LocksLapse",
        {f'{_LAPSED}{{group="g",topic="t",partition="0",instance="{each}"}}': "0x9 1200x60" for each in "ab"},
        {10: 0, 14: 0, 15: 1, 24: 1, 26: 0},
    ),
    Case(
        "half as many lapse, which two replicas show",
        "LocksLapse",
        {f'{_LAPSED}{{group="g",topic="t",partition="0",instance="{each}"}}': "0x9 600x60" for each in "ab"},
        {15: 0, 20: 0},
    ),
    Case(
        "a group is paused",
        "GroupStandsStill",
        {
            **_of_partition("status", "_"),
            'sharequeue_share_partition_status{group="g",topic="t",partition="0",status="paused",instance="a"}': (
                "_x10 1x19 stale"
            ),
        },
        {24: 0, 25: 1, 30: 1, 33: 1, 36: 0},
    ),
    Case(
        "dead letters are held",
        "DeadLettersHeld",
        _of_partition("held_dead_letters", "_x10 5x19 stale"),
        {14: 0, 15: 1, 29: 1, 33: 1, 36: 0},
    ),
    Case(
        "results are held",
        "ResultsHeld",
        _group("held_result_sinks", "0x9 1x20 0x30"),
        {14: 0, 15: 1, 30: 1, 37: 0},
    ),
    Case(
        "results are old",
        "ResultsTooOld",
        _group("oldest_waiting_result_age_seconds", "86000+60x20 stale"),
        {11: 0, 13: 1, 20: 1, 24: 1, 27: 0},
    ),
    Case(
        "many letters",
        "ManyDeadLetters",
        {f'{_LETTERS}{{group="g",instance="{each}"}}': "0x9 1100x100" for each in "ab"},
        {9: 0, 10: 1, 60: 1, 72: 0},
    ),
    Case(
        "fewer letters, which two replicas show",
        "ManyDeadLetters",
        {f'{_LETTERS}{{group="g",instance="{each}"}}': "0x9 600x100" for each in "ab"},
        {10: 0, 60: 0},
    ),
    Case(
        "a group rebalances often, and is created again",
        "GroupRebalancesOften",
        {f'{_EPOCHS}{{group="g",instance="a"}}': "0x9 0+10x20 0x100"},
        {22: 0, 23: 0, 37: 0, 38: 1, 60: 1, 95: 0},
    ),
)
