import itertools
from pathlib import Path

import msgpack  # type: ignore[import-untyped]  # ships no annotations
import numpy as np
import pytest

from tpuserve_loadtests.arrivals.load import PROCESSES, BadTrace, Load, Process, RateProfile, read_trace


def load(rate: str, seconds: float = 100.0, **given: object) -> Load:
    return Load(seconds, profile=RateProfile.parse(rate, seconds), **given)  # type: ignore[arg-type]  # a test's


def instants(of: Load) -> np.ndarray:
    return np.fromiter(of.instants(), np.float64)


@pytest.mark.parametrize("process", PROCESSES)
def test_arrivals_ascend_and_come_at_the_rate(process: Process) -> None:
    found = instants(load("200", process=process))
    assert len(found) == pytest.approx(20_000, rel=0.05)
    assert (np.diff(found) >= 0).all()
    assert found[0] >= 0
    assert found[-1] < 100


def test_poisson_arrivals_have_a_poissons_spread_and_bursts_more() -> None:
    def spread(process: Process) -> float:
        counts = np.histogram(instants(load("200", process=process)), 100, (0, 100))[0]
        return float(counts.var() / counts.mean())

    assert spread("constant") < 0.1
    assert spread("poisson") == pytest.approx(1, abs=0.4)
    assert spread("bursts") == pytest.approx(10, abs=4)


def test_steps_and_ramps_have_their_rates() -> None:
    counts = np.histogram(instants(load("100,400", process="constant")), 4, (0, 100))[0]
    np.testing.assert_allclose(counts, [2500, 2500, 10_000, 10_000], atol=2)
    counts = np.histogram(instants(load("0..400", process="constant")), 4, (0, 100))[0]
    np.testing.assert_allclose(counts, [1250, 3750, 6250, 8750], atol=2)
    falling = instants(load("400..0", process="constant"))
    np.testing.assert_allclose(np.histogram(falling, 4, (0, 100))[0], [8750, 6250, 3750, 1250], atol=2)


def test_warm_up_goes_before_at_the_first_rate() -> None:
    found = instants(load("100..300", 10, warm_up_s=2.0, process="constant"))
    assert ((found < 2).sum(), (found >= 2).sum()) == (200, pytest.approx(2000, abs=2))
    assert load("100..300", 10, warm_up_s=2.0).offered_per_s == 200


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("processes", [2, 3, 7])
def test_shares_of_processes_are_the_whole(process: Process, processes: int) -> None:
    whole = load("150,50", 60, process=process, warm_up_s=1.0)
    shares = [list(whole.instants(index, processes)) for index in range(processes)]
    assert sorted(itertools.chain(*shares)) == list(whole.instants())
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_seeds_make_arrivals_the_same_and_different() -> None:
    first, again, other = (instants(load("50", seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert len(first) != len(other) or (first != other).any()


def test_a_load_survives_the_way_to_another_machine() -> None:
    for sent in (
        load("10..20,50", 5, warm_up_s=1.0, process="bursts", burst=3, limits_us=(1.5,)),
        Load(2, trace=(0, 0.5, 2)),
        Load(3, users=4),
    ):
        received = Load.from_wire(msgpack.unpackb(msgpack.packb(sent.to_wire())))
        assert received == sent
        assert sent.users or list(received.instants()) == list(sent.instants())


@pytest.mark.parametrize("text", ["", "fast", "-5", "0", "100,", "1..2..3", "100,0", "nan"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        RateProfile.parse(text, 10)


def test_a_profile_is_written_as_it_is_read() -> None:
    assert str(RateProfile.parse("100, 200..400,50", 9)) == "100,200..400,50"


def test_a_trace_begins_with_its_first_arrival_and_can_be_faster(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("# recorded\n1700000003.5\n1700000000\n\n1700000001  # the second\n")
    assert read_trace(path) == (0, 1, 3.5)
    assert read_trace(path, speed=2) == (0, 0.5, 1.75)
    assert list(Load(3.5, trace=read_trace(path)).instants(1, 2)) == [1]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "at least two"),
        (b"1\n", "at least two"),
        (b"1\n1\n", "times are equal"),
        (b"1\nsoon\n", "soon"),
        (b"1\ninf\n", "at least"),
        (b"\xff", "text"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(BadTrace, match=complaint):
        read_trace(tmp_path / "t")
    with pytest.raises(BadTrace, match="No such file"):
        read_trace(tmp_path / "none")
