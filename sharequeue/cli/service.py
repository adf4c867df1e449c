"""`sharequeue serve`: the coordinator service in the foreground."""

from __future__ import annotations

import click

from sharequeue.cli.failures import Refused
from sharequeue.cli.options import settings_options
from sharequeue.cli.output import Output, answers, text
from sharequeue.settings import Settings


@click.command()
@settings_options
@answers(text("URL"), one=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=28080, show_default=True, type=click.IntRange(1, 65535), help="The port to listen on."
)
@click.option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Listen where others can reach it, though nobody needs a token to call it.",
)
def serve(settings: Settings, output: Output, host: str, port: int, allow_unauthenticated: bool) -> None:
    """Run the coordinator service: members, assignment, expiry, sweeps, metrics. Ends on Ctrl-C.

    With `-o json` its address is printed before it listens. Its log goes to stderr.
    """
    # Imported here: the web server's modules are nothing to the other commands.
    from sharequeue.service import serve as run
    from sharequeue.service.hosts import is_loopback

    if not is_loopback(host) and not allow_unauthenticated:
        raise Refused(
            f"The service asks for no token: whoever reaches {host}:{port} could join and see every group. "
            "Listen on 127.0.0.1; or make sure that only your own programs reach it, and add "
            "--allow-unauthenticated.",
            "NO_AUTHENTICATION",
        )
    if not output.text:
        output.rows([{"url": f"http://{f'[{host}]' if ':' in host else host}:{port}"}])
    run(settings, host, port)


COMMANDS = (serve,)
