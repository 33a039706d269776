"""Sections of `--help`, which group a command's thirty options by kind."""

from typing import Final

import click

# Names of values by heading. Values in no section belong to the command itself and come first.
SECTIONS: Final = {
    "Server and model": "grpc_address rest_url protocol version label signature_name timeout metrics server_pid",
    "TLS, key and headers": (
        "ca cert key tls_server_name api_key_file control_api_key_file b_api_key_file allow_plaintext_key headers"
    ),
    "Requests": "rows lengths input_file recorded recorded_model",
    "Load": (
        "users think_time rate until trace_file speed process burst rounds request_limit duration warm_up segments "
        "seed settling_figure settled_within most_runs"
    ),
    "Load generator": "processes remote listen generator_limit",
    "Checks and gates": "golden check_share atol rtol objectives gates least_effect unclear",
    "Output": "price prices as_json log junit html attach_to csv hdr otlp otlp_interval",
}
OWN: Final = "Options"
# Sections that keep the order above, independent of the order of the option groups.
_SORTED: Final = ("Load", "Output")


class SectionedCommand(click.Command):
    """Command whose help lists the options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options as Command does, under headings."""
        heading_of = {name: heading for heading, names in SECTIONS.items() for name in names.split()}
        found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (OWN, *SECTIONS)}
        for option in sorted(self.get_params(ctx), key=_place):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                found[heading_of.get(option.name or "", OWN)].append(record)
        for heading, records in found.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _place(parameter: click.Parameter) -> int:
    names = [name for heading in _SORTED for name in SECTIONS[heading].split()]
    return names.index(parameter.name) if parameter.name in names else 0
