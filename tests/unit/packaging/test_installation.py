"""The installation of packages: uv is given what pip's configuration has, and pip installs where uv cannot."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tools import installation


def test_uv_is_given_the_index_of_pip() -> None:
    """The index and the certificates of a file, of the environment, or of both; other settings are pip's alone."""
    listed = (
        ":env:.default-timeout='180'\n"
        "global.cert='/etc/own.crt'\n"
        "global.index-url='https://packages.example/simple'\n"
        "install.extra-index-url='https://one.example\\nhttps://two.example'\n"
    )
    assert installation.as_uv_has_it(listed) == {
        "SSL_CERT_FILE": "/etc/own.crt",
        "UV_DEFAULT_INDEX": "https://packages.example/simple",
        "UV_INDEX": "https://one.example https://two.example",
    }


@pytest.mark.parametrize(
    ("refused", "programs"), [("", ["pip", "pip", "uv"]), ("uv", ["pip", "pip", "uv", "pip"])]
)
def test_pip_installs_where_uv_cannot(
    monkeypatch: pytest.MonkeyPatch, refused: str, programs: list[str]
) -> None:
    """pip brings uv and names its configuration; it installs only after uv has failed."""
    ran: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command[2])
        return subprocess.CompletedProcess(command, int(command[2] == refused), stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    assert installation.install(["a-package"]) == 0
    assert ran == programs
