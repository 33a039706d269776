import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness.targets import Protocol, echoes
from benchmarks.loadgen.body import grpc_answer
from benchmarks.loadgen.check_cost import shares
from benchmarks.loadgen.loadgen import CLOSED, OPEN, PLAIN, UNCHECKED, Bench, Turn, lines, print_lines
from tests.support.certificates import Authority
from tests.support.optional import needs
from tpuserve_client.exchange import PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec


def turn(generator: str, rate_per_s: int, cpu_ms: float, **figures: object) -> Turn:
    """Return a turn of ten seconds at `rate_per_s` that uses `cpu_ms` of CPU per request."""
    return Turn("grpc", generator, 10 * rate_per_s, 0, 10.0, rate_per_s * cpu_ms / 100, **figures)  # type: ignore[arg-type]  # distinct by name


def test_ratios_are_of_turns_of_the_same_round() -> None:
    # The machine slows down between rounds: medians over all turns would compare different machines.
    turns = [
        *(turn(PLAIN, 1000, 1.0), turn(CLOSED, 800, 1.25)),
        *(turn(PLAIN, 500, 2.0), turn(CLOSED, 400, 2.5)),
        *(turn(PLAIN, 250, 4.0), turn(CLOSED, 200, 5.0)),
    ]
    plain, closed = lines(turns)
    assert (plain.rate_share, plain.cpu_share) == (1.0, 1.0)
    assert closed.rate_per_s == 400
    assert closed.cpu_s_per_1000 == pytest.approx(2.5)
    assert closed.rate_share == pytest.approx(0.8)
    assert closed.cpu_share == pytest.approx(0.8)


def test_what_tls_costs_is_of_the_same_generator_in_the_same_round() -> None:
    turns = [
        *(turn(PLAIN, 1000, 1.0), turn(CLOSED, 4000, 0.2), turn(PLAIN, 900, 1.25, tls=True)),
        *(turn(CLOSED, 3000, 0.25, tls=True), turn(PLAIN, 500, 2.0), turn(CLOSED, 2000, 0.4)),
        *(turn(PLAIN, 450, 2.5, tls=True), turn(CLOSED, 1500, 0.5, tls=True)),
    ]
    found = lines(turns)
    assert [(str(line), line.clear_share) for line in found] == [
        (f"grpc, {PLAIN}", None),
        (f"grpc, {CLOSED}", None),
        (f"grpc over TLS, {PLAIN}", pytest.approx(0.8)),
        (f"grpc over TLS, {CLOSED}", pytest.approx(0.8)),
    ]
    assert found[3].cpu_share == pytest.approx(5.0)
    page = io.StringIO()
    print_lines(found, Console(file=page, width=150))
    assert "gRPC, TLS" in page.getvalue()
    assert f"grpc over TLS, {CLOSED}: 5.00 of plain Locust's requests per CPU-second" in page.getvalue()


def test_the_report_says_what_is_missed_and_what_is_not_to_be_trusted() -> None:
    turns = [turn(PLAIN, 1000, 1.0), turn(CLOSED, 900, 1.1), turn(OPEN, 700, 2.0, lag_p99_ms=9.0, limits=("late",))]
    page = io.StringIO()
    print_lines(lines(turns), Console(file=page, width=120))
    text = page.getvalue()
    assert f"grpc, {CLOSED}: 0.91 of plain Locust's requests per CPU-second (goal ≥ 0.8): reached" in text
    assert f"grpc, {OPEN}: 0.50 of plain Locust's requests per CPU-second (goal ≥ 0.8): missed" in text
    assert f"grpc, {OPEN}: late" in text


def test_what_is_sent_can_be_read_as_the_answer_it_comes_back_as() -> None:
    prediction = GrpcWire().read_prediction(Reply(grpc_answer()), PredictCall(ModelSpec("mlp"), {}), None)
    assert prediction["y"].shape == (1, 64)


@pytest.mark.slow
@needs("h2load", "wrk")
@pytest.mark.parametrize(
    ("protocol", "tls"),
    [
        ("rest", False),
        ("grpc", True),
        pytest.param("grpc", False, marks=pytest.mark.nightly),
        pytest.param("rest", True, marks=pytest.mark.nightly),
    ],
)
def test_every_generator_is_answered_by_the_echo(protocol: Protocol, tls: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path) if tls else None
    own, ca = (authority.server, authority.ca) if authority else (None, None)
    with echoes(tmp_path, own) as targets:
        turns = Bench(targets, 1, tmp_path, ca).round(protocol)
    assert {turn.tls for turn in turns} == {tls}
    assert [turn.generator for turn in turns[:4]] == [PLAIN, CLOSED, UNCHECKED, OPEN]
    for turn in turns:
        assert turn.requests > 32  # each user sent a second request after its first response
        assert turn.failures == 0
        assert turn.cpu_s > 0


def test_shares_of_checks_are_those_of_a_load_without_them() -> None:
    plain = Turn("grpc", CLOSED, requests=1000, failures=0, seconds=1.0, cpu_s=0.5)
    checked = Turn("grpc", CLOSED, requests=800, failures=0, seconds=1.0, cpu_s=0.5)
    assert shares([(plain, checked)]) == ("0.80", "0.80")
