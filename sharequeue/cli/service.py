"""`sharequeue serve`: the coordinator service in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from sharequeue.cli.options import settings_options
from sharequeue.cli.output import Output, answers, text
from sharequeue.domain.settings import Settings

_PEM = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@settings_options
@answers(text("URL"), one=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=28080, show_default=True, type=click.IntRange(1, 65535), help="The port to listen on."
)
@click.option(
    "--require-token/--allow-unauthenticated",
    "require_token",
    default=None,
    help="Whether requests without a token are refused. Default: refused, unless --host is a loopback address.",
)
@click.option("--ssl-certificate", type=_PEM, help="PEM file: the service's certificate, with its chain.")
@click.option("--ssl-key", type=_PEM, help="PEM file: the key of the certificate.")
@click.option(
    "--ssl-client-ca",
    type=_PEM,
    help="PEM file: the authority of clients' certificates. A client with one acts as its subject, without a token.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="The format of the log on stderr: a line of text, or a JSON object, for each message. Default: text.",
)
def serve(
    settings: Settings,
    output: Output,
    host: str,
    port: int,
    require_token: bool | None,
    ssl_certificate: Path | None,
    ssl_key: Path | None,
    ssl_client_ca: Path | None,
    log_format: str | None,
) -> None:
    """Run the coordinator service: members, assignment, expiry, sweeps, metrics. Ends on Ctrl-C.

    With `-o json` its address is printed before it listens. Its log goes to stderr.
    """
    # Imported here: other commands do not need the web server.
    from sharequeue.service import Tls
    from sharequeue.service import serve as run
    from sharequeue.service.edge.hosts import is_loopback

    if (ssl_certificate is None) is not (ssl_key is None) or (ssl_client_ca and ssl_certificate is None):
        raise click.UsageError("TLS needs --ssl-certificate and --ssl-key; --ssl-client-ca needs both.")
    tls = Tls(ssl_certificate, ssl_key, ssl_client_ca) if ssl_certificate and ssl_key else None
    if require_token is None:
        require_token = not is_loopback(host)
    if not output.text:
        scheme = "http" if tls is None else "https"
        output.rows([{"url": f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"}])
    if log_format is not None:
        settings = settings.replace(service_log_format=log_format)
    run(settings, host, port, require_token=require_token, tls=tls)


COMMANDS = (serve,)
