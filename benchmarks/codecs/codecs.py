"""Time the wire codecs for images, small requests, tf.Examples and the Open Inference Protocol.

Run: `.venv/bin/python -m benchmarks codecs [images] [requests] [examples] [oip] [--json]`. About 2 minutes.
"""

import json
import os
import sys

import click
from rich.console import Console

# Hide TensorFlow's startup messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.codecs import examples as example_codecs
from benchmarks.codecs import images as image_codecs
from benchmarks.codecs import inference_protocol as oip_codecs
from benchmarks.codecs import report as codec_report
from benchmarks.codecs import requests as request_codecs

WIDTH = 100

SECTIONS = {
    "images": image_codecs.measure,
    "requests": request_codecs.measure,
    "examples": example_codecs.measure,
    "oip": oip_codecs.measure,
}


@click.command()
@click.argument("sections", type=click.Choice(list(SECTIONS)), nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(sections: tuple[str, ...], as_json: bool) -> None:
    """Time the wire codecs next to a baseline, by SECTION (default: all sections)."""
    progress = Console(stderr=True)
    tables = []
    for name in sections or SECTIONS:
        progress.print(f"measuring {name}", style="dim")
        tables.append(SECTIONS[name]())
    if as_json:
        click.echo(json.dumps(codec_report.to_json(tables), indent=2))
    else:
        codec_report.show(tables, Console(width=None if sys.stdout.isatty() else WIDTH))
