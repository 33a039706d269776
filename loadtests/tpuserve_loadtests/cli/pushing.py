"""The options `--otlp`, which push metrics while a load runs."""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from tpuserve_loadtests.arrivals.duration import Duration
from tpuserve_loadtests.cli.command import option
from tpuserve_loadtests.cli.explicit_options import explicit_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuserve_loadtests.traffic.otlp_push import OtlpPush
    from tpuserve_loadtests.traffic.target import Runs


def _checked(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    parts = urlsplit(value or "http://none")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.BadParameter(f"{value!r} is not a URL such as http://localhost:4318.")
    if parts.username or parts.password:
        raise click.BadParameter("A URL with a password would appear in reports. Set OTEL_EXPORTER_OTLP_HEADERS.")
    return value


@dataclass(frozen=True, slots=True)
class PushOptions:
    """The receiver of metrics, and the interval of pushes in seconds."""

    otlp: str | None = option(
        "--otlp",
        metavar="URL",
        callback=_checked,
        help="Push live metrics over OTLP/HTTP: http://collector:4318, or http://prometheus:9090/api/v1/otlp.",
    )
    otlp_interval: float = option(
        "--otlp-interval",
        type=Duration(),
        default="5s",
        show_default=True,
        help="Time between two pushes of --otlp.",
    )

    def check(self) -> None:
        """Raise a usage error for an interval without a receiver, or if the extra is not installed."""
        if self.otlp is None:
            if "otlp_interval" in explicit_names():
                raise click.UsageError("--otlp-interval has no effect without --otlp.")
            return
        try:
            import opentelemetry.exporter.otlp.proto.http.metric_exporter
            import opentelemetry.sdk.metrics.export  # noqa: F401  both are imported only to find them
        except ImportError:
            raise click.UsageError("--otlp needs the extra otlp: pip install 'tpuserve-loadtests[otlp]'") from None


@dataclass(frozen=True, slots=True)
class Pushing:
    """The runner of a command, and its pushes, or None without --otlp."""

    runs: "Runs"
    push: "OtlpPush | None" = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on failed pushes, complete after the block of `pushing`."""
        return self.push.notes if self.push else ()


@contextmanager
def pushing(runs: "Runs", options: PushOptions, model: str) -> "Iterator[Pushing]":
    """Push the metrics of all loads of the block. Print the first problem as a warning."""
    if options.otlp is None:
        yield Pushing(runs)
        return
    from tpuserve_loadtests.traffic.otlp_push import OtlpPush, PushedRuns

    def warn(words: str) -> None:
        click.echo(f"Warning: {words}", err=True)

    with OtlpPush(options.otlp, options.otlp_interval, model, warn) as push:
        yield Pushing(PushedRuns(runs, push), push)
