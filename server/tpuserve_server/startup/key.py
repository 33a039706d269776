"""`tpuserve key`: makes an API key, and the line of a credentials file that accepts it."""

import shlex

import click

from tpuserve_server.access.access import ROLE_NAMES
from tpuserve_server.access.credentials import CredentialsError, digest_of, make_key, parse_credentials

_EPILOG = """\b
Examples:
  tpuserve key alice --roles predict,read >> credentials
  tpuserve key shop --roles predict --models digits,prices >> credentials
  tpuserve key prometheus --roles read >> credentials

The key goes to standard error and is shown once. The line goes to standard output, and has only the key's hash.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@click.option("--roles", required=True, help=f"What the client may do: some of {','.join(ROLE_NAMES)}.")
@click.option("--models", help="Names or patterns of the models that it may use. [default: all]")
def key(name: str, roles: str, models: str | None) -> None:
    """Make an API key for the client NAME."""
    secret = make_key()
    words = [name, roles, f"sha256:{digest_of(secret).hex()}", *([] if models is None else [models])]
    line = shlex.join(words)
    try:
        parse_credentials(f"{line}\n")
    except CredentialsError as error:
        raise click.UsageError(str(error).removeprefix("line 1: ")) from None
    click.echo(line)
    click.echo(f"Key of {name}: {secret}", err=True)


def main() -> None:
    """Run `tpuserve key`. This is the entry point of `tpuserve-key`."""
    key(prog_name="tpuserve key")


if __name__ == "__main__":
    main()
