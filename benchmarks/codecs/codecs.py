"""What the wire codecs cost: images, small requests and tf.Examples, each beside the obvious way in the same run.

Run: `.venv/bin/python -m benchmarks codecs [images] [requests] [examples] [--json]`. About 90 seconds.
"""

import json
import os
import sys

import click
from rich.console import Console

# TensorFlow's first lines say nothing about codecs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.codecs import examples as example_codecs
from benchmarks.codecs import images as image_codecs
from benchmarks.codecs import report as codec_report
from benchmarks.codecs import requests as request_codecs

WIDTH = 100

SECTIONS = {
    "images": image_codecs.measure,
    "requests": request_codecs.measure,
    "examples": example_codecs.measure,
}


@click.command()
@click.argument("sections", type=click.Choice(list(SECTIONS)), nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output; progress on stderr.")
def main(sections: tuple[str, ...], as_json: bool) -> None:
    """Time the wire codecs beside the obvious way, SECTION by section (all of them unless some are named)."""
    progress = Console(stderr=True)
    tables = []
    for name in sections or SECTIONS:
        progress.print(f"measuring {name}", style="dim")
        tables.append(SECTIONS[name]())
    if as_json:
        click.echo(json.dumps(codec_report.to_json(tables), indent=2))
    else:
        codec_report.show(tables, Console(width=None if sys.stdout.isatty() else WIDTH))
