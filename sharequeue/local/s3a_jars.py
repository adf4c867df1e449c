"""Where does Spark's client of S3 come from, for an output on `s3a:`?

From a set of jars of its own, beside those of the stack: most users need none of it, and `make demo` fetches none of
it. It is fetched once, by hand; `spark_session` uses it when the output is on `s3a:` and the set is there.

    python -m sharequeue.local.s3a_jars
"""

from __future__ import annotations

from pathlib import Path

import click

from sharequeue.local import jars
from sharequeue.local.preflight import StackError, find_java
from sharequeue.output_place import client_jars
from sharequeue.settings import Settings

S3A = jars.JarSet("s3a", ("s3a",), "Spark's client of S3, once, into {folder} (10 MB)")


def ensure(settings: Settings) -> None:
    """Fetch the jars beside those of the stack, unless they are there. Raises StackError."""
    folder = client_jars(settings.jars).parent
    jars.ensure(folder, find_java(), settings.ivy_settings, lambda line: click.echo(line, err=True), S3A)


@click.command()
@click.option("--home", type=click.Path(path_type=Path), help="The data folder (default: .sharequeue).")
def main(home: Path | None) -> None:
    """Fetch what Spark needs for an output on S3 (s3a://): 33 jars, 10 MB."""
    try:
        ensure(Settings.load(home))
    except StackError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
