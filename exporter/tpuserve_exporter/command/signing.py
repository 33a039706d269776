"""The commands `tpuserve sign VERSION` and `tpuserve keygen KEY_FILE`."""

import json
from pathlib import Path
from typing import NoReturn, get_args

import click

from tpuserve_exporter.command.running import report_failure, run_program
from tpuserve_exporter.errors import ExportError, OptionConflict, PublishFailed
from tpuserve_exporter.version.signing import check_and_sign, read_key
from tpuserve_formats.signing.keys import KeyType, key_id, write_key_pair

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document to standard output, and nothing else."
)

_SIGN_EPILOG = """\b
Examples:
  # a new key pair: signing.key, and signing.key.pub for servers (--require_signed=signing.key.pub)
  tpuserve keygen signing.key
\b
  # sign version 3 of the model digits
  tpuserve sign models/digits/3 --key signing.key
\b
  # the same in the form of OpenSSF Model Signing
  tpuserve keygen ecdsa.key --type ecdsa-p256
  tpuserve sign models/digits/3 --key ecdsa.key

\b
Exit codes:
  0  signed
  1  unexpected error
  2  wrong usage, or a file without a private key
  5  the version is not writable
  6  no manifest, or files that differ from it
"""


@click.command(epilog=_SIGN_EPILOG, context_settings=_CONTEXT)
@click.argument("version", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--key", metavar="KEY_FILE", type=click.Path(path_type=Path), required=True, help="Private key.")
@click.option("--model", metavar="NAME", help="Model name in servers.  [default: name of the parent directory]")
@click.option("--number", type=int, help="Version number in servers.  [default: name of the directory]")
@_JSON
def sign(version: Path, key: Path, model: str | None, number: int | None, as_json: bool) -> int:
    """Sign the exported version in the directory VERSION.

    The command first compares every file with the manifest. The signature covers the manifest, the model name and the
    version number. Signatures by other keys stay.

    With an ECDSA key, the command writes model.sig in the form of OpenSSF Model Signing. The program model_signing
    verifies it, too.
    """
    try:
        subject = model or version.resolve().parent.name, _number(version) if number is None else number
        signer = check_and_sign(version, *subject, read_key(key))
    except ExportError as error:
        return report_failure(error, as_json)
    except OSError as error:
        return report_failure(PublishFailed(f"cannot sign {version}: {error.strerror}"), as_json)
    if as_json:
        click.echo(json.dumps({"ok": True, "key_id": signer, "model": subject[0], "version": subject[1]}))
    else:
        click.echo(f"signed {subject[0]} version {subject[1]} by {signer}")
    return 0


def _number(version: Path) -> int:
    name = version.resolve().name
    if not name.isdecimal():
        raise OptionConflict(f"{name} is not a version number. Set --number")
    return int(name)


@click.command(context_settings=_CONTEXT)
@click.argument("key_file", type=click.Path(path_type=Path))
@click.option(
    "--type",
    "kind",
    type=click.Choice(get_args(KeyType)),
    default="ed25519",
    show_default=True,
    help="ecdsa-p256 signs in the form of OpenSSF Model Signing.",
)
@_JSON
def keygen(key_file: Path, kind: KeyType, as_json: bool) -> int:
    """Create a pair of keys to sign versions with.

    KEY_FILE gets the private key, which only its owner can read. KEY_FILE.pub gets the public key, for servers.
    """
    try:
        key = write_key_pair(key_file, kind)
    except FileExistsError as error:
        return report_failure(OptionConflict(f"{error.filename} exists. Choose another name"), as_json)
    except OSError as error:
        return report_failure(PublishFailed(f"cannot write {error.filename}: {error.strerror}"), as_json)
    if as_json:
        click.echo(
            json.dumps({"ok": True, "key_id": key_id(key), "private": str(key_file), "public": f"{key_file}.pub"})
        )
    else:
        click.echo(f"{key_id(key)}: keep {key_file} secret, and give {key_file}.pub to servers")
    return 0


def main() -> NoReturn:
    """Run the `tpuserve-sign` program, which users start as `tpuserve sign`."""
    run_program(sign, "tpuserve sign")


def keygen_main() -> NoReturn:
    """Run the `tpuserve-keygen` program, which users start as `tpuserve keygen`."""
    run_program(keygen, "tpuserve keygen")
