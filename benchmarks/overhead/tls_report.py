"""Report of TLS: each request next to the one without TLS, and the cost of a handshake."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.harness.measurement import Point
from benchmarks.overhead.handshakes import HandshakePoint


def tls_table(points: Sequence[tuple[Point, Point]]) -> Table:
    """Return a row for each load: the server with TLS, and without."""
    table = _table(
        "The same requests over TLS 1.3, on connections that stay open",
        "Ratios: to the server without TLS at the same load, measured in the same turn.",
        ("in flight", "req/s", "p50 ms", "CPU", "plain req/s", "plain p50", "plain CPU", "rate/plain", "CPU/plain"),
    )
    for secure, plain in points:
        figures = (
            f"{value:{form}}"
            for point in (secure, plain)
            for value, form in (
                (point.load.rate_per_s, ",.0f"), (point.load.p50_ms, ".2f"), (point.cpu_s_per_1000, ".3f")
            )
        )  # fmt: skip
        ratios = (secure.load.rate_per_s / plain.load.rate_per_s, secure.cpu_s_per_1000 / plain.cpu_s_per_1000)
        shown = (f"{ratio:.2f}" for ratio in ratios)
        table.add_row(secure.protocol, str(secure.in_flight), *figures, *shown)
    return table


def handshake_table(points: Sequence[HandshakePoint]) -> Table:
    """Return a row for each protocol: new connections with a full handshake, and without TLS."""
    table = _table(
        "New connections, one after the other: TCP and a full TLS 1.3 handshake with an ECDSA P-256 certificate",
        "CPU: seconds of the server's process tree per 1000 connections.",
        ("per second", "CPU", "plain CPU"),
    )
    plain = {point.protocol: point for point in points if point.kind != "tls"}
    for point in points:
        if point.kind == "tls":
            other = plain.get(point.protocol)
            shown = "-" if other is None else f"{other.cpu_s_per_1000:.3f}"
            table.add_row(point.protocol, f"{point.rate_per_s:,.0f}", f"{point.cpu_s_per_1000:.3f}", shown)
    return table


def _table(title: str, caption: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column("protocol")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
