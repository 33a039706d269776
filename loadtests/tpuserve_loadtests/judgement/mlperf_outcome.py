"""The outcome of a run by MLPerf Inference's rules."""

from dataclasses import dataclass

from tpuserve_formats.price import Price
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.mlperf import Result
from tpuserve_loadtests.judgement.search import Searched
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.watched import Watched


@dataclass(frozen=True, slots=True)
class MlperfOutcome:
    """The outcome of a run. With `quick`, the verdict ignores the duration.

    `watched` is the run with the server's metrics. `searched` is the preceding search, if any.
    `rows` is the mean number of samples in a query. `price` is that of the server's machine, if known.
    """

    result: Result
    watched: Watched
    quick: bool = False
    searched: Searched | None = None
    rows: float = 1.0
    price: Price | None = None

    @property
    def measured(self) -> Measured:
        """The measurements of the run."""
        (measured,) = self.watched.runs
        return measured

    @property
    def spending(self) -> Spending:
        """The cost and the energy of the run."""
        return Spending(self.measured.rate_per_s, self.rows, self.price, self.watched.energy)

    @property
    def is_kept(self) -> bool:
        """Whether the run keeps the rules; `quick` ignores the rule on its duration."""
        return self.result.valid_but_for_duration if self.quick else self.result.valid

    @property
    def exit_code(self) -> int:
        """The exit code of the first match: interrupted, generator limit, INVALID, success."""
        if self.measured.stopped and not self.measured.lost:
            return EXIT_FAILED
        if not self.result.generator_kept_up:
            return EXIT_GENERATOR
        return 0 if self.is_kept else EXIT_GATE
