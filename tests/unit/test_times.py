"""No test depends on how fast the machine is: one limit of waits, no sleep, no duration under a number.

`tests/deep` is left out: it measures machines on purpose.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
_WAITS = {
    *("wait", "join", "result", "communicate", "settimeout", "wait_until", "flush"),
    *("init_transactions", "commit_transaction", "abort_transaction"),
}
_REQUESTS = {"get", "post", "put", "delete", "Client"}
_DEFAULT = ast.Constant(5.0)  # httpx's own
_LIMITS = {"timeout", "seconds"}
_SUSPECT = re.compile(
    r"time\.sleep|(?:wait|join|result|communicate|settimeout|flush|_transactions?)\([^\n]*\d|wait_until\([^\n]*(?:\d|\($)"
    r"|(?:timeout|seconds)=\d|httpx|assert[^\n]*<[^\n]*\d$",
    re.MULTILINE,
)
"""What a file must have to be parsed."""
_DURATION = re.compile(r"monotonic|seconds|elapsed|longest|took|_age\b|\bage\b")
_MEANT = {
    "member.join(0.2)": "what is waited for never comes",
    "member.join(0.5)": "what is waited for never comes",
    "member.join(1)": "what is waited for never comes",
    "both.wait(0.5)": "the other one need not come",
    "self.history.wait(0.5)": "how often a history draws a wait: it waits for nothing",
}
_MAY_SLEEP = {
    "chaos/interrupted_runs.py": "work that never ends, in a process that is interrupted",
    "conformance/live_java.py": "nothing shows when the broker has released what a session held",
    "conformance/live_log.py": "the broker's own clock cannot be moved",
    "conformance/live_members.py": "nothing shows when the broker has released what a session held",
    "fuzzer/clients.py": "random pauses",
    "integration/service/pages/test_letters.py": "slow work, longer than a limit in seconds: more is as good",
    "integration/state/test_operations_locks.py": "a process that stood still: longer is as good",
    "transactions/clients.py": "random pauses",
}
"""Files that let time pass elsewhere than between two looks at a condition, and why no machine is too slow for it."""


def _number(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value > 0


def _called(call: ast.Call) -> str:
    owner = getattr(getattr(call.func, "value", None), "id", "")
    return f"{owner}.{getattr(call.func, 'attr', getattr(call.func, 'id', ''))}"


def _limits(call: ast.Call) -> Iterator[ast.AST]:
    given = {each.arg: each.value for each in call.keywords}
    owner, _, name = _called(call).rpartition(".")
    if name in _WAITS:
        yield from (*call.args, *(given[each] for each in _LIMITS & given.keys()))
    elif owner == "httpx" and name in _REQUESTS:
        yield given.get("timeout", _DEFAULT)


def _found(tree: ast.AST, may_sleep: bool) -> Iterator[tuple[ast.expr, str]]:
    looks: set[ast.AST] = set()
    pauses: set[ast.AST] = set()  # `while not stop.wait(1)`: the time between two turns is no limit
    for node in ast.walk(tree):  # from the outside in
        if isinstance(node, ast.While):
            looks.update(ast.walk(node))
            pauses.update(ast.walk(node.test))
        elif isinstance(node, ast.Call) and any(map(_number, _limits(node))):
            if node not in pauses and ast.unparse(node) not in _MEANT:
                yield node, "wait for PATIENCE_S of tests/waiting.py"
        elif isinstance(node, ast.Call) and _called(node) == "time.sleep":
            if node not in looks and not may_sleep:
                yield node, "wait for a condition, or move the database's clock"
        elif isinstance(node, ast.Assert):
            for each in ast.walk(node.test):
                if isinstance(each, ast.Compare) and isinstance(each.ops[-1], ast.Lt | ast.LtE):
                    *_, left, right = (each.left, *each.comparators)
                    if _number(right) and _DURATION.search(ast.unparse(left)):
                        yield each, "let the clock stand, or compare two durations"


def test_no_test_depends_on_the_speed_of_the_machine() -> None:
    """A limit that a slow machine breaks is named with its line, and what to do instead."""
    files = {
        path.relative_to(TESTS).as_posix(): path.read_text()
        for path in sorted(TESTS.rglob("*.py"))
        if "deep" not in path.parts
    }
    bad = [
        f"{name}:{node.lineno}: {ast.unparse(node)[:90]}: {instead}"
        for name, text in files.items()
        if _SUSPECT.search(text)
        for node, instead in _found(ast.parse(text), name in _MAY_SLEEP)
    ]
    assert bad == []
