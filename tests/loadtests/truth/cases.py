"""Cases of `tpuserve loadtest run`: every load shape, with the server's behaviours."""

from pathlib import Path
from typing import Final

from tests.loadtests.recorded_logs import START_S, numbered, predict_entry, write_log
from tests.loadtests.truth.schedule import diurnal, planned, spikes
from tests.loadtests.truth.script import Fault, Script, Wrong
from tests.loadtests.truth.tester import MODEL, Case

_FAILED, _GATE, _GENERATOR = 1, 99, 98
# Service times of 40 ms, of which 3 % is more than a client adds, and which differ a little, as those of real models.
_STEADY: Final = Script(service_s=0.040, spread_s=0.010)
# Equal times keep the users in step: their responses arrive together, and a client reads them one after the other.
_CONSTANT_TIME: Final = Script(service_s=0.060)
_BIMODAL: Final = Script(service_s=0.040, spread_s=0.010, slow={19: 0.160})
_REFUSED: Final = {Fault.UNAVAILABLE: 17, Fault.INTERNAL: 23, Fault.EXHAUSTED: 29}
# The first request of each user opens a connection. Without warm-up, a short run shows this in p99.
_MOST: Final = (50, 90)
_CONSTANT: Final = ("--arrivals", "constant")


def _timed(seconds: float = 1.5, warm_up: str = "0") -> tuple[str, ...]:
    return ("--duration", f"{seconds:g}s", "--warm-up", warm_up)


def _closed(users: int, seconds: float = 1.5) -> tuple[str, ...]:
    return ("--users", str(users), *_timed(seconds))


def _warm(users: int) -> tuple[str, ...]:
    """Return a closed load whose connections open in the warm-up, so that the percentiles omit this."""
    return ("--users", str(users), *_timed(1.5, "300ms"))


def _trace(folder: Path, instants: list[float]) -> tuple[str, ...]:
    file = folder / "arrivals.txt"
    file.write_text("".join(f"{instant!r}\n" for instant in instants))
    return ("--trace", str(file), "--warm-up", "0")


def _recorded(folder: Path) -> tuple[str, ...]:
    """Record 30, 90 and 60 requests in three seconds."""
    times = [START_S + second for second, count in enumerate((30, 90, 60)) for _ in range(count)]
    log = write_log(
        folder / "requests.jsonl", [predict_entry(numbered(n % 9), at_s, model=MODEL) for n, at_s in enumerate(times)]
    )
    return ("--recorded", str(log), "--speed", "2", "--warm-up", "0")


_RECORDED_S: Final = [
    second + (number + 0.5) / count for second, count in enumerate((30, 90, 60)) for number in range(count)
]


def _scenario(folder: Path) -> tuple[str, ...]:
    file = folder / "mixed.yaml"
    file.write_text("models:\n- model: small\n  weight: 3\n- model: large\n  rows: {1: 0.5, 8: 0.5}\n")
    return ("--scenario", str(file))


_POISSON: Final = planned([(10.3, 200, 200)], "poisson")
_DAY: Final = diurnal(2.0, 150.0, 0.8)
_SPIKES: Final = spikes(1.5, 100.0, (0.4, 1.0), 30)
# More arrivals at once than the load generator keeps in flight.
_FLOOD: Final = [0.0, 0.2, *[0.5] * 10_300]

CLOSED: Final = (
    Case(shape="closed users", behaviour="gRPC, constant", script=_CONSTANT_TIME, options=_warm(4)),
    Case(shape="closed users", behaviour="REST, constant", script=_CONSTANT_TIME, options=_warm(4), protocol="rest"),
    Case(shape="closed users", behaviour="both, varying", script=_STEADY, options=_warm(8), protocol="both"),
    Case(shape="closed users", behaviour="both, bimodal", script=_BIMODAL, options=_warm(8), protocol="both"),
    Case(
        shape="closed users",
        behaviour="gRPC, 4 slots for 12 users",
        script=Script(service_s=0.020, spread_s=0.005, slots=4),
        options=_warm(12),
    ),
    Case(
        shape="closed users",
        behaviour="gRPC, no responses for 0.5 s",
        script=Script(service_s=0.040, spread_s=0.010, hold_at_s=0.7, hold_s=0.5),
        options=_warm(8),
    ),
    Case(
        shape="closed users, 2 processes",
        behaviour="both, varying",
        script=_STEADY,
        options=(*_warm(8), "--processes", "2"),
        protocol="both",
    ),
)

OPEN: Final = (
    Case(
        shape="constant rate",
        behaviour="gRPC, bimodal",
        script=_BIMODAL,
        options=("--rate", "200", *_CONSTANT, *_timed()),
        planned=planned([(1.5, 200, 200)]),
    ),
    Case(
        shape="constant rate",
        behaviour="REST, bimodal",
        script=_BIMODAL,
        options=("--rate", "200", *_CONSTANT, *_timed()),
        protocol="rest",
        planned=planned([(1.5, 200, 200)]),
    ),
    Case(
        shape="Poisson",
        behaviour="gRPC, varying",
        script=_STEADY,
        options=("--rate", "200", *_timed()),
        planned=planned([(1.5, 200, 200)], "poisson"),
    ),
    Case(
        shape="Poisson, warm-up",
        behaviour="both, varying",
        script=_STEADY,
        options=("--rate", "200", *_timed(1, "500ms"), "--seed", "7"),
        protocol="both",
        planned=planned([(1.5, 200, 200)], "poisson", seed=7),
    ),
    Case(
        shape="Poisson, 2 processes",
        behaviour="gRPC, varying",
        script=_STEADY,
        options=("--rate", "200", *_timed(), "--processes", "2", "--connections", "2"),
        planned=planned([(1.5, 200, 200)], "poisson"),
    ),
    Case(
        shape="bursts of 10",
        behaviour="gRPC, varying",
        script=_STEADY,
        options=("--rate", "200", "--arrivals", "bursts", *_timed()),
        planned=planned([(1.5, 200, 200)], "bursts"),
    ),
    Case(
        shape="ramp",
        behaviour="REST, varying",
        script=_STEADY,
        options=("--rate", "50..250", *_CONSTANT, *_timed()),
        protocol="rest",
        planned=planned([(1.5, 50, 250)]),
    ),
    Case(
        shape="steps",
        behaviour="gRPC, varying",
        script=_STEADY,
        options=("--rate", "100,300,50", *_timed()),
        planned=planned([(0.5, 100, 100), (0.5, 300, 300), (0.5, 50, 50)], "poisson"),
    ),
    Case(
        shape="diurnal trace",
        behaviour="gRPC, varying",
        script=_STEADY,
        options=(),
        files=lambda folder: _trace(folder, _DAY),
        planned=_DAY,
    ),
    Case(
        shape="spikes trace, speed 2",
        behaviour="gRPC, 8 slots",
        script=Script(service_s=0.040, slots=8),
        options=("--speed", "2"),
        files=lambda folder: _trace(folder, [2 * instant for instant in _SPIKES]),
        planned=_SPIKES,
    ),
    Case(
        shape="replay, speed 2",
        behaviour="both, varying",
        script=_STEADY,
        options=(),
        protocol="both",
        files=_recorded,
        planned=[(instant - _RECORDED_S[0]) / 2 for instant in _RECORDED_S],
    ),
    Case(
        shape="scenario, two models",
        behaviour="both, varying",
        script=_STEADY,
        options=("--rate", "200", *_timed()),
        protocol="both",
        model=(),
        files=_scenario,
        planned=planned([(1.5, 200, 200)], "poisson"),
    ),
    Case(
        shape="Poisson",
        behaviour="gRPC, 4 slots, overloaded",
        script=Script(service_s=0.040, slots=4),
        options=("--rate", "150", *_timed()),
        planned=planned([(1.5, 150, 150)], "poisson"),
    ),
)

# Coordinated omission: a frozen server reads no request, so that its own log shows no wait.
STALLS: Final = tuple(
    Case(
        shape="constant rate",
        behaviour=f"{protocol}, frozen for 0.5 s",
        script=Script(service_s=0.040, freeze_at_s=0.4, freeze_s=0.5),
        options=("--rate", "100", *_CONSTANT, *_timed(2)),
        protocol="grpc" if protocol == "gRPC" else "rest",
        planned=planned([(2, 100, 100)]),
    )
    for protocol in ("gRPC", "REST")
)

REFUSALS: Final = (
    Case(
        shape="closed users",
        behaviour="both, refusals",
        percents=_MOST,
        script=Script(service_s=0.040, spread_s=0.010, faults=_REFUSED),
        options=_closed(8, 1),
        protocol="both",
        exit_code=_FAILED,
    ),
    Case(
        shape="Poisson",
        behaviour="both, refusals",
        percents=_MOST,
        script=Script(service_s=0.040, spread_s=0.010, faults=_REFUSED),
        options=("--rate", "200", *_timed(1)),
        protocol="both",
        planned=planned([(1, 200, 200)], "poisson"),
        exit_code=_FAILED,
    ),
)

REFUSED_STREAMS: Final = tuple(
    Case(
        shape="closed users",
        behaviour=f"gRPC, {name} refused",
        percents=(),
        script=Script(service_s=0.002, faults={Fault.REFUSED: every}),
        options=("--users", "1", "--requests", "60", *_timed(30)),
        exit_code=_FAILED if every == 1 else 0,
        requests=60,
    )
    for name, every in (("all streams", 1), ("some streams", 3))
)

# The Open Inference Protocol over gRPC and over HTTP with binary tensors. Two processes receive the request headers.
OIP: Final = Case(
    shape="closed users, 2 processes",
    behaviour="OIP, refusals",
    percents=(),
    script=Script(service_s=0.040, spread_s=0.010, faults=_REFUSED),
    options=(*_closed(8, 1), "--processes", "2"),
    protocol="oip",
    exit_code=_FAILED,
)

BROKEN: Final = (
    Case(
        shape="closed users",
        behaviour="gRPC, reset, cut, torn",
        script=Script(faults={Fault.RESET: 11, Fault.CUT: 47, Fault.TORN: 59}),
        options=_closed(8, 1),
        exit_code=_FAILED,
        percents=(),
    ),
    Case(
        shape="closed users",
        behaviour="REST, cut, torn",
        script=Script(faults={Fault.CUT: 11, Fault.TORN: 13}),
        options=_closed(8, 1),
        protocol="rest",
        exit_code=_FAILED,
        percents=(),
    ),
    Case(
        shape="closed users",
        behaviour="both, no response",
        script=Script(faults={Fault.SILENT: 19}),
        options=(*_closed(8, 1), "--timeout", "3s"),
        protocol="both",
        exit_code=_FAILED,
        percents=(),
    ),
    Case(
        shape="constant rate",
        behaviour="gRPC, server dies",
        script=Script(die_at_s=0.5),
        options=("--rate", "100", *_CONSTANT, *_timed(1)),
        planned=planned([(1, 100, 100)]),
        exit_code=_FAILED,
        percents=(),
        dies=True,
    ),
)

EJECTED: Final = (
    Case(
        shape="closed users",
        behaviour="gRPC, connections ejected",
        percents=(50,),
        script=Script(service_s=0.040, spread_s=0.010, eject_every=40),
        options=_closed(8, 1),
    ),
    Case(
        shape="Poisson",
        behaviour="gRPC, connections ejected",
        percents=(50,),
        script=Script(service_s=0.040, spread_s=0.010, eject_every=40),
        options=("--rate", "200", *_timed(1)),
        planned=planned([(1, 200, 200)], "poisson"),
    ),
    Case(
        shape="closed users",
        behaviour="REST, connections ejected",
        percents=(50,),
        script=Script(service_s=0.040, spread_s=0.010, eject_every=10),
        options=_closed(8, 1),
        protocol="rest",
    ),
)

WRONG_ANSWERS: Final = tuple(
    Case(
        shape="closed users, --golden record",
        behaviour=f"{protocol}, wrong: {', '.join(wrong)}",
        script=Script(service_s=0.005, wrong=wrong, right=32),
        options=(*_closed(4, 0.7), "--golden", "record", "--check-share", "1"),
        protocol="grpc" if protocol == "gRPC" else "rest",
        apart=32,
        exit_code=_FAILED,
        percents=(),
    )
    for protocol in ("gRPC", "REST")
    for wrong in (
        {Wrong.VALUE: 11, Wrong.SWAPPED: 13},
        {Wrong.MISSING: 11, Wrong.SHAPE: 13, Wrong.NAN: 17},
    )
)

OIP_WRONG_ANSWERS: Final = Case(
    shape="closed users, --golden record",
    behaviour="OIP gRPC and JSON, wrong responses",
    script=Script(service_s=0.005, wrong={Wrong.VALUE: 11, Wrong.SWAPPED: 13, Wrong.MISSING: 17}, right=64),
    options=(*_closed(4, 0.7), "--golden", "record", "--check-share", "1"),
    protocol="oip_json",
    apart=64,
    exit_code=_FAILED,
    percents=(),
)

_USELESS: Final = (Wrong.HTML, Wrong.ERROR, Wrong.EMPTY, Wrong.HALF, Wrong.MISSING, Wrong.SHAPE)
USELESS_ANSWERS: Final = tuple(
    Case(
        shape="closed users",
        behaviour=f"{protocol}, one useless response of each kind in about 500",
        script=Script(service_s=0.0, wrong=dict(zip(_USELESS, (499, 503, 509, 521, 523, 541), strict=True)), right=100),
        options=("--users", "8", "--requests", "1500", "--warm-up", "0"),
        protocol=protocol,
        exit_code=_FAILED,
        percents=(),
    )
    for protocol in ("grpc", "rest", "oip", "oip_json")
)

# Loads with a number of requests, and closed loads with pauses.
LIMITED: Final = (
    Case(
        shape="closed users, 150 requests",
        behaviour="both, varying",
        script=_STEADY,
        options=("--users", "8", "--requests", "150", "--warm-up", "0"),
        protocol="both",
        percents=_MOST,
        requests=150,
    ),
    Case(
        shape="Poisson, 150 requests, warm-up",
        behaviour="gRPC, varying",
        script=_STEADY,
        options=("--rate", "200", "--requests", "150", "--warm-up", "300ms"),
        planned=_POISSON[: sum(at_s < 0.3 for at_s in _POISSON) + 150],
        requests=150,
    ),
    Case(
        shape="closed users, think time",
        behaviour="gRPC, varying",
        script=_STEADY,
        options=("--think-time", "exponential(20ms)", *_warm(8)),
    ),
)

DROPPED: Final = Case(
    shape="flood trace",
    behaviour="gRPC, no responses for 4 s",
    script=Script(hold_at_s=0.0, hold_s=4.0),
    options=(),
    files=lambda folder: _trace(folder, _FLOOD),
    planned=_FLOOD,
    exit_code=_GENERATOR,
    percents=(),
)

EARLY_ENDS: Final = tuple(
    Case(
        shape="Poisson, gate fails early",
        behaviour=f"gRPC, constant, seed {seed}",
        script=Script(service_s=0.040),
        options=("--rate", "300", *_timed(3), "--fail-if", "p99>15ms", "--seed", str(seed)),
        planned=planned([(3, 300, 300)], "poisson", seed=seed),
        exit_code=_GATE,
        percents=(),
        ends_early=True,
    )
    for seed in range(1, 9)
)

EVERY: Final = (
    *(
        *CLOSED,
        *OPEN,
        *STALLS,
        *REFUSALS,
        OIP,
        *BROKEN,
        *EJECTED,
        *WRONG_ANSWERS,
        OIP_WRONG_ANSWERS,
        *USELESS_ANSWERS,
        *LIMITED,
    ),
    *(DROPPED, *EARLY_ENDS),
)
