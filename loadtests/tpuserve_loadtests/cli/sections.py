"""`--help` in sections: commands have thirty options, of which a reader looks for one kind at a time."""

from typing import Final

import click

# Values' names, by heading. What is in none of them is the command's own, and comes first.
SECTIONS: Final = {
    "Server and model": "grpc_address rest_url protocol version label signature_name timeout metrics",
    "TLS and headers": "ca cert key tls_server_name headers",
    "What is sent": "rows lengths input_file recorded recorded_model",
    "Load": "users rate until trace_file speed process burst duration warm_up rounds segments seed",
    "Load generator": "processes remote listen generator_limit",
    "What is right, and good enough": "golden check_share atol rtol objectives gates least_effect unclear",
    "Output": "as_json junit log html csv hdr",
}
OWN: Final = "Options"


class SectionedCommand(click.Command):
    """A command whose help has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As Command's."""
        heading_of = {name: heading for heading, names in SECTIONS.items() for name in names.split()}
        found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (OWN, *SECTIONS)}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                found[heading_of.get(option.name or "", OWN)].append(record)
        for heading, records in found.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
