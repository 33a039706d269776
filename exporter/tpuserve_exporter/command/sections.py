"""Sections of `tpuserve export --help`, which group the options by purpose."""

from collections.abc import Sequence
from typing import Final

import click

# Parameter names by heading, in the order of the help.
SECTIONS: Final = {
    "Source": "kind builder model_args weights renames allow_missing allow_unused unsafe allowed_ops",
    "Signatures": "signatures signature_name inputs outputs input_tensors output_tensors image_scale labels",
    "Batching": ("batch_sizes sequence_buckets pad_values batching batch_threads batch_timeout_us batch_queue"),
    "Conversion": "compute_dtype int8 freeze also",
    "Device programs": "device_programs topologies tpu_strict tpu_numerics mesh rules",
    "Checks": ("check examples atol rtol warmup serve_check allow_nan allow_nondeterminism allow_batch_statistics"),
    "Publishing": "version again sign dry_run",
    "Output": "reports as_json verbose",
}


class SectionedCommand(click.Command):
    """A command whose `--help` lists the options under headings. Options in no section come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one definition list for each section."""
        options = {one.name: one for one in self.get_params(ctx) if isinstance(one, click.Option)}
        for heading, names in SECTIONS.items():
            _write(ctx, formatter, heading, [options.pop(name) for name in names.split()])
        _write(ctx, formatter, "Help", list(options.values()))


def _write(ctx: click.Context, formatter: click.HelpFormatter, heading: str, options: Sequence[click.Option]) -> None:
    records = [option.get_help_record(ctx) for option in options]
    with formatter.section(heading):
        formatter.write_dl([record for record in records if record is not None])
