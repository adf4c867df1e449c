"""Look for known faults in the packages of `requirements.lock`: `python -m tools.audit PIP_AUDIT`, for `make check`.

pip-audit asks the index for advisories. Where that cannot be asked, or knows nothing of a package, pip-audit reports
success all the same; this says plainly what was not looked at. Exit code 1 is for known faults only: a server of
others that is away fails nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
_OPTIONS = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json", "--timeout", "10")


def verdict(printed: str, complained: str) -> tuple[int, str]:
    """Return the exit code and the message for what pip-audit printed as JSON and on stderr."""
    try:
        packages = json.loads(printed)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (complained.strip().splitlines() or ["it printed nothing"])[-1]
        return 0, f"AUDIT NOT DONE: the advisories could not be asked for ({reason[:200]})."
    faults = [
        f"{each['name']} {each['version']}: {fault['id']}, repaired in {', '.join(fault['fix_versions']) or 'none'}"
        for each in packages
        for fault in each.get("vulns", [])
    ]
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    said = [
        f"AUDIT: {len(packages) - len(unknown)} packages of {LOCK.name} audited, {len(faults)} known faults."
    ]
    if unknown:
        said.append(f"NOT AUDITED, because the index has no advisories for them: {len(unknown)} packages.")
    return bool(faults), "\n".join([*said, *faults])


def main(program: str) -> int:
    """Return the exit code of `make audit`."""
    if not Path(program).exists():
        print("AUDIT NOT DONE: pip-audit could not be installed (see above); is the network up?")
        return 0
    ran = subprocess.run(
        [program, "--requirement", str(LOCK), *_OPTIONS], capture_output=True, text=True, check=False
    )
    code, said = verdict(ran.stdout, ran.stderr)
    print(said)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
