"""The requests of users to a model, as the metrics pages of its servers count them.

The pages do not name clients, so the requests of users are those beyond the rollout's own.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from typing import Final

from tpuserve_loadtests.access import Access
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.metrics_page import NoPage, Page, start_time_s
from tpuserve_loadtests.monitoring.server_watch import Scraper
from tpuserve_loadtests.requests.protocols import TITLES, Protocol

# The server's names of an API and of a method. The pages do not distinguish the forms of tensors over OIP HTTP.
_LOADED: Final[Mapping[tuple[str, str], Protocol]] = {
    ("grpc", "Predict"): "grpc",
    ("rest", "Predict"): "rest",
    ("grpc", "ModelInfer"): "oip_grpc",
    ("rest", "ModelInfer"): "oip_http",
}
# Other methods that run a model. No load sends them.
_OTHERS: Final = ("Classify", "Regress", "MultiInference", "ModelStreamInfer")
_PORTS: Final = {"grpc": "gRPC", "rest": "REST"}
_REQUESTS: Final = "tpuserve_requests_total"
_FAILED: Final = "tpuserve_failed_requests_total"


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of successful requests of users over an API. `protocol` is None if no load uses the API."""

    api: str
    requests: int
    protocol: Protocol | None


@dataclass(frozen=True, slots=True)
class UserTraffic:
    """Requests of users to the new version while a load ran, and how many failed by the server's fault.

    `problem` is the reason if the numbers are unknown.
    """

    requests: int = 0
    failed: int = 0
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"requests of users are unknown: {self.problem}"
        if not self.requests:
            return "users sent no request to the new version"
        words = f"users sent {self.requests:,} requests to the new version"
        return f"{words}, of which {self.failed:,} failed by the server's fault"


class UserRequests:
    """The counts of one model's predictions on the pages of all its servers. Every method blocks for the pages."""

    def __init__(self, model: str, urls: Callable[[], Sequence[str]], access_of: Callable[[str], Access]) -> None:
        """Read the pages that `urls` returns. It raises NoPage if they are not those of all servers."""
        self._model = model
        self._urls = urls
        self._access_of = access_of

    def usage(self) -> list[Usage] | None:
        """Return the APIs that the model's users have called, or None if the pages do not show them."""
        try:
            page = self._page()
        except NoPage:
            return None
        found = []
        for port, title in _PORTS.items():
            counts = page.totals(_REQUESTS, "method", [{"model_name": self._model, "protocol": port, "code": "OK"}])
            for method, count in counts.items():
                protocol = _LOADED.get((port, method))
                if count and (protocol or method in _OTHERS):
                    api = TITLES[protocol] if protocol else f"{method} over {title}"
                    found.append(Usage(api, round(count), protocol))
        return found

    def during(self, version: int, load: Callable[[], Measured]) -> tuple[Measured, UserTraffic]:
        """Run the load on a version, and return it with the requests of users meanwhile."""
        try:
            before = self._page()
        except NoPage as error:
            return load(), UserTraffic(problem=str(error))
        measured = load()
        try:
            after = self._page()
        except NoPage as error:
            return measured, UserTraffic(problem=str(error))
        if start_time_s(before) != start_time_s(after):
            return measured, UserTraffic(problem="a server started or ended during the load")
        counted = after.since(before)
        own, recorder = measured.total, measured.recorder
        sent = own.requests + recorder.warm_up_requests + recorder.unanswered
        labels = {"model_name": self._model, "version": str(version)}
        methods = {*_OTHERS, *(method for _, method in _LOADED)}
        requests = counted.total(_REQUESTS, [{**labels, "method": method} for method in methods])
        failed = counted.total(_FAILED, [{**labels, "method": method, "fault": "server"} for method in methods])
        # The server answered the wrong responses without a failure.
        own_failed = own.failures - own.wrong
        return measured, UserTraffic(max(round(requests or 0) - sent, 0), max(round(failed or 0) - own_failed, 0))

    def _page(self) -> Page:
        pages = []
        for url in self._urls():
            with closing(Scraper(url, self._access_of(url))) as scraper:
                pages.append(scraper.page())
        page = reduce(Page.plus, pages)
        if not page.has("tpuserve_version_state"):
            raise NoPage("the servers do not count requests by protocol and version")
        return page
