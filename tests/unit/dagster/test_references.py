"""Objects named as text: what is wrong with a name is known without running anything."""

from __future__ import annotations

import ast
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sharequeue.dagster.references import NoSuchObject, Reference, packed


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a module `jobs.orders` that fails when it is run."""
    package = tmp_path / "jobs"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('a package was imported')\n")
    text = "import pyspark as spark\nfrom os import path\n\nasync def later(): ...\n\nhandle = 1 / 0\n"
    (package / "orders.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    return package / "orders.py"


@pytest.mark.parametrize("text", ["", "jobs", "jobs.orders", ":handle", "jobs.orders:", "a b:c", "jobs:a.b"])
def test_an_invalid_reference_is_refused(text: str) -> None:
    with pytest.raises(NoSuchObject, match=r"not of the form MODULE:NAME, such as my_module:orders"):
        Reference.parse(text)


@pytest.mark.parametrize("name", ["handle", "later", "path"])
def test_names_that_the_text_binds_are_found(module: Path, name: str) -> None:
    """Assigned, defined or imported names are found, and nothing is run to find them."""
    Reference.parse(f"jobs.orders:{name}").check()


@pytest.mark.parametrize(
    "text",
    [
        "if 1:\n    orders = 2",
        "try:\n    from a import orders\nexcept ImportError:\n    pass",
        "try:\n    import orders\nexcept ImportError:\n    orders = None",
        "for orders in range(3):\n    pass",
        "with open('a') as orders:\n    pass",
        "a = [orders := each for each in range(3)]",
        "match 1:\n    case orders:\n        pass",
        "(a, *orders), b = [[1, 2], 3]",
        "orders: int = 3",
        "class orders:\n    pass",
        "def load():\n    global orders\n    orders = 3",
        "@(orders := print)\ndef load():\n    pass",
        # What cannot be known is accepted.
        "from os.path import *",
        "def __getattr__(name):\n    return 3",
        "def load():\n    globals()['orders'] = 3",
        "import sys\nsetattr(sys.modules[__name__], 'orders', 3)",
        "exec('orders = 3')",
    ],
)
def test_a_name_of_the_module_is_accepted(module: Path, text: str) -> None:
    """Whichever statement binds it when the module is imported, or later as `global`."""
    module.write_text(f"{text}\n")
    Reference.parse("jobs.orders:orders").check()


@pytest.mark.parametrize(
    "text",
    [
        "def load():\n    order = 3",
        "def load(order):\n    pass",
        "async def load():\n    for order in []:\n        pass",
        "class Load:\n    order = 3",
        "load = [order for order in range(3)]",
        "load = lambda order: (part := order)",
        "try:\n    pass\nexcept ValueError as order:\n    pass",
        "import os as order",
        "import order.of.things",
    ],
)
def test_a_name_that_is_none_of_the_module_is_refused(module: Path, text: str) -> None:
    """Local variables, arguments and attributes are not names of the module, and a module that it imports is not an
    object of it."""
    module.write_text(f"orders = 1\n{text}\n")
    with pytest.raises(NoSuchObject, match=r"Did you mean orders\?"):
        Reference.parse("jobs.orders:order").check()


@pytest.mark.parametrize(("name", "line"), [("path", 2), ("later", 4), ("handle", 6), ("made", 10)])
def test_the_place_of_an_object_is_found_in_the_text(module: Path, name: str, line: int) -> None:
    """It is the line that first binds the name in the module; a module without source has none."""
    with module.open("a") as text:
        text.write("def make():\n    global made\n    handle = 3\n    made = 4\n")
    assert Reference.parse(f"jobs.orders:{name}").place() == (module.resolve(), line)
    assert Reference.parse("math:sqrt").place() is None


def test_a_missing_name_is_reported_with_the_nearest(module: Path) -> None:
    with pytest.raises(NoSuchObject, match=r"module jobs\.orders has no handel\. Did you mean handle\?"):
        Reference.parse("jobs.orders:handel").check()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "jobs.order:handle",
            r"there is no module jobs\.order: jobs has no module order\. Did you mean orders\?",
        ),
        ("no_such_package:handle", r"there is no module no_such_package: it is neither installed nor in "),
        ("jobs.orders.deeper:handle", r"jobs\.orders has no module deeper$"),
    ],
)
def test_a_missing_module_is_reported(module: Path, text: str, says: str) -> None:
    with pytest.raises(NoSuchObject, match=says):
        Reference.parse(text).check()


def test_a_module_beside_the_path_is_reported_with_its_place(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in another folder has its own folder on Python's path, and not the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_beside_the_path.py").touch()
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(tmp_path))])
    reference = Reference.parse("shop_beside_the_path:handle")
    for look in (reference.check, reference.load):
        with pytest.raises(
            NoSuchObject, match=rf"on Python's path: .* in the working directory, {tmp_path}, which"
        ):
            look()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\ndef handle(:\n", r"invalid syntax \(.*orders\.py, line 2\)"),
        (b"handle = '\xff'\n", "utf-8"),
        (b"\0", "null"),
    ],
)
def test_a_syntax_error_of_a_module_is_reported_with_its_line(module: Path, text: bytes, says: str) -> None:
    module.write_bytes(text)
    with pytest.raises(NoSuchObject, match=rf"module jobs\.orders is not valid Python: .*{says}"):
        Reference.parse("jobs.orders:handle").check()


def test_loading_gives_the_object_or_says_what_is_missing() -> None:
    assert Reference.parse("os.path:join").load()("a", "b") == "a/b"
    with pytest.raises(NoSuchObject, match="has no joyn"):
        Reference.parse("os.path:joyn").load()
    with pytest.raises(NoSuchObject, match=r"there is no module os\.nothing"):
        Reference.parse("os.nothing:join").load()


def test_a_parse_that_fails_by_a_fault_of_python_is_repeated(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of Python 3.11, which comes and goes, is no fault of the module's."""
    spoilt, parse = [True], ast.parse

    def spoiling(*given: Any) -> ast.Module:
        if spoilt.pop():
            spoilt.append(False)
            raise SystemError("AST constructor recursion depth mismatch (before=162, after=226)")
        tree: ast.Module = parse(*given)
        return tree

    monkeypatch.setattr(ast, "parse", spoiling)
    Reference.parse("jobs.orders:handle").check()


def test_a_package_without_an_init_is_imported_from_the_packed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders have entries of their own, and it has nothing but Python files."""
    inner = tmp_path / "plain_shop" / "inner"
    inner.mkdir(parents=True)
    (inner / "orders.py").write_text("handle = 7\n")
    (inner / "data.csv").write_text("secret")
    (file,) = packed({"plain_shop": tmp_path / "plain_shop"}, tmp_path)
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ["plain_shop/", "plain_shop/inner/", "plain_shop/inner/orders.py"]
    monkeypatch.syspath_prepend(str(file))
    assert import_module("plain_shop.inner.orders").handle == 7
