"""What a Java from a wheel trusts when it fetches: what Python trusts, in a store that Java reads."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from sharequeue.local.preflight import find_java
from sharequeue.local.trust_store import trust_options

KEYTOOL = "java.base/sun.security.tools.keytool.Main"
"""keytool, where only the module is there and not the program."""


def test_java_reads_the_store_and_finds_it_whole(tmp_path: Path) -> None:
    store = tmp_path / "trust.jks"
    authorities = ssl.create_default_context().get_ca_certs(binary_form=True)
    assert authorities, "Python trusts nobody here: install ca-certificates, or set SSL_CERT_FILE"
    assert str(store) in trust_options(store)[0]
    said = subprocess.run(
        [find_java().executable, "-m", KEYTOOL, "-list", "-keystore", store, "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout
    assert said.stdout.count("trustedCertEntry") == len(authorities)


def test_where_python_has_no_list_java_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    assert trust_options(tmp_path / "trust.jks") == []
    assert not (tmp_path / "trust.jks").exists()
