"""`python -m tests.docs.access_table`: rewrite the table of roles in docs/how-to/operate/access.md."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.deploy.dockerfile import ROOT
from tests.support.server_routes import ServerRoute, routes_of
from tpuserve_server.access import access
from tpuserve_server.access.access import Access
from tpuserve_server.startup.app import build
from tpuserve_server.startup.validation import read_settings

PAGE = ROOT / "docs/how-to/operate/access.md"
BEGIN = "<!-- The declarations of the routes make this table: python -m tests.docs.access_table -->\n"
END = "<!-- End of the table of roles -->\n"

_NEEDS = {
    access.OPEN: "nothing",
    access.PREDICT: "`predict`",
    access.DESCRIBE: "`predict` or `read`",
    access.READ: "`read`",
    access.READ_SERVER: "`read`, all models",
    access.CONTROL: "`control`",
    access.CONTROL_SERVER: "`control`, all models",
}
# Paths with one of these parts need the same as the path without it.
_VARIANTS = ("VERSION", "LABEL", "REPOSITORY", "REGION")


def access_table() -> str:
    """Return a row for each kind of access, with its methods and routes."""
    with tempfile.TemporaryDirectory() as folder:
        server = build(read_settings(model_name="m", model_base_path=folder))
    routes = routes_of(server)
    rows = "".join(
        f"| {needs} | {_methods(kind, routes)} | {_paths(kind, routes)} |\n" for kind, needs in _NEEDS.items()
    )
    return f"| Needs | gRPC methods | REST routes |\n|---|---|---|\n{rows}"


def written_table(page: str) -> str:
    """Return the page's table."""
    return page.partition(BEGIN)[2].partition(END)[0]


def write_table(page: str) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{access_table()}{END}{rest.partition(END)[2]}"


def _methods(kind: Access, routes: Iterable[ServerRoute]) -> str:
    by_service: dict[str, list[str]] = {}
    for route in routes:
        if route.protocol == "grpc" and route.access == kind:
            service, _, method = route.path.removeprefix("/").partition("/")
            by_service.setdefault(service.rpartition(".")[2], []).append(method)
    return "; ".join(f"{service}: {', '.join(dict.fromkeys(names))}" for service, names in by_service.items())


def _paths(kind: Access, routes: Iterable[ServerRoute]) -> str:
    shown = {
        f"`{route.method} {route.shown}`": None
        for route in routes
        if route.protocol == "rest" and route.access == kind and not any(part in route.shown for part in _VARIANTS)
    }
    return ", ".join(shown)


if __name__ == "__main__":
    page = Path(PAGE)
    page.write_text(write_table(page.read_text()))
