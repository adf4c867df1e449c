"""Install packages into the environment of this Python: with uv, or with pip where uv cannot.

The arguments are those of `pip install`. The new environment's own Python runs the script before anything is
installed, so it imports only the standard library. uv needs less than half of pip's time, and names the packages that
it downloads and builds. It does not read pip's configuration, so it is given the package index and the certificates
that are set there.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

UV = "uv>=0.8,<1"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_NAMES = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}


def as_uv_has_it(configuration: str) -> Mapping[str, str]:
    """Return the environment variables of uv for what `pip config list` prints."""
    variables: dict[str, str] = {}
    for line in configuration.splitlines():
        key, _, value = line.partition("=")
        if name := _NAMES.get(key.rpartition(".")[2]):
            variables[name] = " ".join(str(ast.literal_eval(value)).split())
    return variables


def install(arguments: Sequence[str]) -> int:
    """Install the packages; return the exit code."""
    if subprocess.run([*PIP, "install", "--quiet", UV]).returncode == 0:
        listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True)
        # Compiled now: where PYTHONDONTWRITEBYTECODE is set, every process would compile all that it imports.
        uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--compile-bytecode"]
        environment = {**as_uv_has_it(listed.stdout), **os.environ}
        if subprocess.run([*uv, *arguments], env=environment).returncode == 0:
            return 0
    print("uv could not install the packages. pip tries it now.", file=sys.stderr, flush=True)
    return subprocess.run([*PIP, "install", "--use-pep517", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(install(sys.argv[1:]))
