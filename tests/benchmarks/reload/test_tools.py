import threading
from pathlib import Path

from benchmarks.reload.reload import Reload, Soak
from benchmarks.reload.tools import LightLoad, Sample, latency, parse_log, publish, retire


def test_h2loads_log_becomes_samples() -> None:
    log = "1795251932250603\t200\t1500\n1795251932250700\t-1\t90\n"
    assert parse_log(log) == [Sample(1795251932.250603, 1500, True), Sample(1795251932.2507, 90, False)]


def test_a_request_is_in_a_swap_if_any_of_it_is() -> None:
    samples = [Sample(start, 500_000, True) for start in (0.0, 0.6, 1.4, 1.9, 2.1)]
    spans = [(1.0, 2.0)]
    assert latency(samples, spans, inside=True).requests == 3
    assert latency(samples, spans, inside=False).requests == 2
    assert latency([Sample(0, 1000, True), Sample(0, 3000, True)], [], inside=False).max_ms == 3


def test_versions_are_links_to_the_template(tmp_path: Path) -> None:
    template, base = tmp_path / "template", tmp_path / "models" / "m"
    (template / "variables").mkdir(parents=True)
    (template / "variables" / "data").write_text("x")
    base.mkdir(parents=True)
    publish(template, base, 2)
    assert (base / "2" / "variables" / "data").samefile(template / "variables" / "data")
    retire(base, 2)
    assert list(base.iterdir()) == []
    assert (template / "variables" / "data").read_text() == "x"


def test_failures_of_the_light_load_are_kept() -> None:
    sent: list[int] = []
    enough = threading.Event()

    def send() -> None:
        sent.append(1)
        if len(sent) == 4:
            enough.set()
        if len(sent) % 2 == 0:
            raise ConnectionError("refused")

    with LightLoad(send, 0.001) as load:
        assert enough.wait(10)
    assert load.sent == len(sent)
    assert load.failures == ["ConnectionError: refused"] * (load.sent // 2)


def test_the_second_half_of_a_soak_is_judged() -> None:
    reloads = [Reload(float(mb), 20) for mb in (500, 700, 1000, 1040)]
    assert round(Soak(reloads, 10, []).spread, 6) == 0.04
