"""Dagster's webserver, asked as its page asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.waiting import PATIENCE_S, wait_until

LOCATION = {"repositoryLocationName": "sharequeue", "repositoryName": "__repository__"}

_LAUNCHED = """{ __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } } }"""
_LAUNCH = f"mutation ($wanted: ExecutionParams!) {{ launchRun(executionParams: $wanted) {_LAUNCHED} }}"
_AGAIN = f"mutation ($of: ReexecutionParams!) {{ launchRunReexecution(reexecutionParams: $of) {_LAUNCHED} }}"
_TERMINATE = """mutation ($run: String!) { terminateRun(runId: $run) {
    __typename ... on TerminateRunFailure { message } ... on PythonError { message } } }"""
_RUN = """query ($run: ID!) { runOrError(runId: $run) { ... on Run { status parentRunId tags { key value }
    repositoryOrigin { repositoryName repositoryLocationName } } } }"""
_RUNS = "query { runsOrError { ... on Runs { results { runId status parentRunId } } } }"


@dataclass(frozen=True)
class Webserver:
    """The webserver at `url`."""

    url: str

    def ask(self, query: str, **variables: Any) -> Any:
        """Ask for one thing; return it."""
        body = {"query": query, "variables": variables}
        result = httpx.post(f"{self.url}/graphql", json=body, timeout=PATIENCE_S, trust_env=False)
        assert result.status_code == 200, result.text
        assert "errors" not in result.json(), result.json()
        (found,) = result.json()["data"].values()
        return found

    def launch(
        self,
        job: str,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        assets: Sequence[Sequence[str]] | None = None,
    ) -> str:
        """Launch a run of a job, or, as "Materialize" does, of some assets of it; return its id."""
        selector: dict[str, Any] = {**LOCATION, "jobName": job}
        if assets is not None:
            selector |= {"assetSelection": [{"path": list(path)} for path in assets]}
        wanted = {
            "selector": selector,
            "mode": "default",
            "runConfigData": config or {},
            "executionMetadata": {"tags": _pairs(tags)},
        }
        return _id(self.ask(_LAUNCH, wanted=wanted))

    def again(self, run: str, strategy: str, tags: Mapping[str, str] | None = None) -> str:
        """Execute a run again, as ALL_STEPS or FROM_FAILURE; return the new one's id."""
        return _id(self.ask(_AGAIN, of={"parentRunId": run, "strategy": strategy, "extraTags": _pairs(tags)}))

    def terminate(self, run: str) -> None:
        """Terminate a run."""
        asked = self.ask(_TERMINATE, run=run)
        assert asked["__typename"] == "TerminateRunSuccess", asked

    def status(self, run: str) -> str:
        """What Dagster says of a run."""
        return str(self.run(run)["status"])

    def run(self, run: str) -> Any:
        """A run's status, parent, origin, and tags by name."""
        found = self.ask(_RUN, run=run)
        return {**found, "tags": {tag["key"]: tag["value"] for tag in found["tags"]}}

    def runs(self) -> Any:
        """Every run, the latest first."""
        return self.ask(_RUNS)["results"]

    def ends(self, run: str) -> str:
        """Wait for the end of a run; return how it ended."""
        ended = ("SUCCESS", "FAILURE", "CANCELED")
        wait_until(lambda: self.status(run) in ended, PATIENCE_S, lambda: self.run(run))
        return self.status(run)


def _pairs(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in (tags or {}).items()]


def _id(launched: Any) -> str:
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return str(launched["run"]["runId"])
