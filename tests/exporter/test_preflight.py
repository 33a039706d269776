"""Tests for device programs that libtpu compiles for real TPU topologies, and for the reports about them."""

import functools
import importlib.util
import json
import re
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from tests.exporter.conftest import Finished
from tests.exporter.shaped_versions import (
    FOLDER,
    write_classifier,
    write_lookup,
    write_mixed,
    write_version,
    write_wide,
)
from tests.support.descriptors import low_descriptors_taken
from tpuserve_exporter.command.checking import command
from tpuserve_exporter.options.tpu import FAMILIES, DeviceMesh, TpuTopology
from tpuserve_exporter.programs.compile_job import CompileJob, CompileOutcome
from tpuserve_exporter.programs.compiler import read_refusal, rewrite
from tpuserve_exporter.programs.compiler_process import CompilerProcess, Compilers
from tpuserve_exporter.programs.preflight import rows_wasted, suggest_batch_sizes
from tpuserve_exporter.programs.verdict import ProgramVerdict, VersionMemory
from tpuserve_exporter.programs.version_programs import VersionProgram, make_rules
from tpuserve_exporter.reports import shown_progress

# Compilers use every core, so one process runs all their tests.
pytestmark = [pytest.mark.xdist_group(__name__)]
compiles = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, which has wheels for Linux on x86-64, is not installed"
)

V5E = TpuTopology.parse("v5e:1x1")


def check(*arguments: object) -> Finished:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)
    if isinstance(done.exception, click.ClickException):
        return Finished(done.exception.exit_code, done.stdout, done.exception.format_message())
    assert done.exception is None, done.exception
    return Finished(done.return_value, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("classifier") / "1")


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lookup(tmp_path_factory.mktemp("lookup") / "1")


@compiles
def test_every_program_is_compiled_for_every_topology(classifier: Path) -> None:
    done = check(classifier, "--tpu", "v5litepod-1,v6e:1x1", "--json")
    rows = done.document["preflight"]
    assert done.code == 0, done.out
    assert [(row["topology"], row["batch_size"], row["verdict"]) for row in rows] == [
        (topology, size, "compiles and fits") for topology in ("v5e:1x1", "v6e:1x1") for size in (1, 8)
    ]
    for row in rows:
        hbm, (lower, upper) = row["hbm_bytes"], row["latency_s_estimate"]
        assert hbm["needed"] >= hbm["arguments"] + hbm["outputs"] > 64 * 10 * 4
        assert 0 < lower <= upper < 1e-3
        assert row["flops"] > 2 * 64 * 10
        assert row["layout_padding"] >= 1
    assert "libtpu" in done.document["compiler"]


@compiles
def test_people_are_told_in_a_table(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A step of less than a second would leave no line.
    monkeypatch.setattr(shown_progress, "_SHOWN_S", 0.0)
    done = check(classifier, "--tpu", "v5e:1x1")
    assert done.code == 0
    assert "Compile for v5e:1x1" in done.out
    assert "v5e:1x1, one device: 15.75 GiB" in done.out
    assert done.out.count("compiles and fits") == 2
    assert "No TPU was used" in done.out
    assert re.search(
        r"All programs together: fits, [\d.]+ MiB of 15\.75 GiB \(weights [\d.]+ [KM]iB, two batches [\d.]+ [KM]iB, ",
        done.out,
    )


@compiles
def test_what_does_not_fit_is_refused_with_what_would(lookup: Path) -> None:
    done = check(lookup, "--tpu", "v5e:1x1", "--json")
    (row,) = done.document["preflight"]
    assert done.code == 4
    assert row["reason"] == "does not fit: needs 40.00 of 15.75 GiB, 24.25 GiB too much"
    (advice,) = done.document["advice"]
    assert "1x2" not in advice  # no machine has two chips
    assert "on v5e:2x2 with --mesh model=4 --shard '^embedding/table$=model,-' (10.00 GiB a device)" in advice


@compiles
def test_a_table_cut_over_four_chips_fits(lookup: Path) -> None:
    done = check(lookup, "--tpu", "v5e:2x2", "--mesh", "model=4", "--shard", "table$=model,-", "--json")
    (row,) = done.document["preflight"]
    assert (done.code, row["verdict"]) == (0, "compiles and fits")
    assert 10 * 2**30 <= row["hbm_bytes"]["arguments"] < 10.1 * 2**30


@compiles
def test_the_version_s_own_rules_hold_where_none_are_given(tmp_path: Path) -> None:
    version = write_lookup(tmp_path / "1", [{"pattern": "table", "axes": ["model", None]}])
    assert check(version, "--tpu", "v5e:2x2", "--mesh", "model=4").code == 0
    assert check(version, "--tpu", "v5e:2x2", "--mesh", "model=4", "--shard", "kernel=-,model").code == 2


@compiles
def test_batches_are_cut_over_data(tmp_path: Path) -> None:
    version = write_classifier(tmp_path / "1", (3, 512))
    rows = check(version, "--tpu", "v5e:2x2", "--mesh", "data=4", "--json").document["preflight"]
    full = check(version, "--tpu", "v5e:2x2", "--json").document["preflight"]
    # Three rows go to every device, like in the server.
    assert rows[0]["hbm_bytes"]["arguments"] == full[0]["hbm_bytes"]["arguments"]
    assert rows[1]["hbm_bytes"]["arguments"] < full[1]["hbm_bytes"]["arguments"]


@compiles
def test_results_are_whole_where_weights_are_cut_as_a_server_has_them(tmp_path: Path) -> None:
    inputs, weights = {"x": ((1, 64), np.float32)}, {"kernel": ((64, 4096), np.float32)}
    version = write_version(tmp_path / "1", lambda x, kernel: (x @ kernel,), inputs, weights, (8,))
    done = check(version, "--tpu", "v5e:2x2", "--mesh", "model=4", "--shard", "kernel=-,model", "--json")
    (hbm,) = [row["hbm_bytes"] for row in done.document["preflight"]]
    assert hbm["outputs"] >= 8 * 4096 * 4
    assert hbm["arguments"] < 64 * 4096 * 4 / 2


@compiles
@pytest.mark.parametrize("mesh", [DeviceMesh(), DeviceMesh(data=5, model=3)])
def test_arguments_are_as_large_as_the_compiler_says_one_by_one(tmp_path: Path, mesh: DeviceMesh) -> None:
    program = str(write_mixed(tmp_path / "1") / FOLDER / "b5.jaxexport")
    cut = mesh.devices > 1
    axes = ((), (None, None, "model"), (), (), ()) if cut else ((),) * 5
    jobs = [
        CompileJob(program, name, mesh.data, mesh.model, (cut,) * 3, (cut,) * 3, axes)
        for name in ("v5e:4x4", "v4:2x2x4", "tpu7x:2x2x4")
    ]
    with Compilers() as compilers:
        for _, outcome in compilers.run(jobs):
            assert sum(outcome.weight_bytes) + outcome.input_bytes == outcome.argument_bytes
            # The compiler pads rows of 300 float32 to tiles of 8 x 128, even in unused arguments, like in a server.
            assert outcome.weight_bytes[-1] == 304 * 384 * 4


@compiles
def test_what_fits_one_by_one_and_not_together_is_refused(tmp_path: Path) -> None:
    version = write_wide(tmp_path / "1")
    done = check(version, "--tpu", "v5e:1x1,v6e:1x1", "--json")
    assert done.code == 4
    assert {row["verdict"] for row in done.document["preflight"]} == {"compiles and fits"}
    small, large = done.document["preflight_together"]
    assert [small["verdict"], small["side_by_side"]] == ["does not fit", 0]
    assert [large["verdict"], large["side_by_side"]] == ["fits", 1]
    (advice,) = done.document["advice"]
    assert advice.startswith("v5e:1x1: each program fits, but not all programs together. They need 16.")
    assert advice.endswith("too much, with two batches in flight. These batch sizes fit: 1024")
    expected = check(version, "--tpu", "v6e:1x1")
    assert (expected.code, "A second such version does not fit" in expected.out) == (0, True)


@compiles
def test_a_mesh_of_several_machines_is_compiled_and_said_to_be_beyond_a_server(classifier: Path) -> None:
    done = check(classifier, "--tpu", "v5e:2x4,v5e:4x4", "--mesh", "data=8", "--json")
    assert (done.code, done.document["advice"]) == (0, [])
    done = check(classifier, "--tpu", "v5e:4x4", "--mesh", "data=16", "--json")
    (advice,) = done.document["advice"]
    assert done.code == 0
    assert "16 devices on several machines with 8 devices each. A server runs on one machine" in advice


@compiles
def test_available_memory_is_what_the_compiler_says(lookup: Path) -> None:
    """Compare the table of chips with libtpu's error messages, which vary by some MiB between versions of libtpu."""
    program = str(lookup / FOLDER / "b8.jaxexport")
    topologies = [TpuTopology(family, family.grids[0]) for family in FAMILIES.values() if family.hbm_bytes < 40 * 2**30]
    jobs = [CompileJob(program, one.name, 1, 1, (False,), (False,), ((), ())) for one in topologies]
    with Compilers() as compilers:
        output = {number: outcome.available_bytes for number, outcome in compilers.run(jobs)}
    assert [output[number] for number in range(len(jobs))] == pytest.approx(
        [one.family.hbm_bytes for one in topologies], rel=1e-3
    )
    assert len(jobs) == 5


@compiles
def test_a_program_in_bfloat16_takes_half(lookup: Path) -> None:
    program = str(lookup / FOLDER / "b8.jaxexport")
    job = CompileJob(program, "v5e:2x2", 1, 4, (False,), (False,), (("model", None), ()))
    with Compilers(most=1) as compilers:
        outcomes = dict(compilers.run([job, replace(job, bfloat16=True)]))
    assert outcomes[1].argument_bytes == pytest.approx(outcomes[0].argument_bytes / 2, rel=1e-3)


@compiles
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--mesh", "model=4"], 2, "--mesh model=4 needs 4 devices, but v5e:1x1 has 1. Use v5e:2x2"),
        (["--tpu", "v9:1x1"], 2, "'v9:1x1' is not a known TPU. Known TPUs: v2, v3, v5e, v6e in 1x1,"),
        (["--mesh", "model"], 2, "'model' is not of the form data=N,model=M"),
        (["--shard", "kernel=-,model"], 2, "--shard 'kernel=-,model' splits nothing over --mesh data=1"),
        (["--tpu", "v5e:2x2", "--mesh", "model=4", "--shard", "nothing=model"], 2,
         "--shard 'nothing=model' matches no weight. The weights are dense/kernel, dense/bias"),
        (["--tpu", "v5e:2x2", "--mesh", "model=4", "--shard", "kernel=-,model"], 2,
         "cannot split dense/kernel of shape [64, 10] along model=4: 10 is not a multiple of 4"),
        (["--tpu", "v5e:2x2", "--mesh", "model=4", "--shard", "bias=-,model"], 2,
         "the --shard rule for dense/bias has 2 axes, but the shape is [10]"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for(classifier: Path, arguments: list[str], code: int, message: str) -> None:
    done = check(classifier, *(["--tpu", "v5e:1x1"] if "--tpu" not in arguments else []), *arguments)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err


@compiles
def test_what_is_no_version_with_programs(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "empty", "is not a version directory"),
        (tmp_path / "gone", "does not exist. Use the directory of a version, such as models/digits/3"),
        (classifier.parent, f"is a base path. Use one of its versions, such as {classifier}"),
    ):
        done = check(path, "--tpu", "v5e:1x1", "--json")
        assert (done.code, done.document["kind"]) == (6, "SourceUnreadable")
        assert message in done.document["error"]
    (manifest := tmp_path / "empty/assets.extra/tpuserve/manifest.json").parent.mkdir(parents=True)
    manifest.write_text('{"files": {}}')
    assert "has no device programs. Export it again with --tpu" in check(tmp_path / "empty", "--tpu", "v5e:1x1").err
    manifest.write_text('{"files": {}, "device": {"format_version": 1, "parts": 3}}')
    assert "manifest.json is damaged: device.parts" in check(tmp_path / "empty", "--tpu", "v5e:1x1").err


@compiles
def test_a_damaged_program_is_refused(tmp_path: Path) -> None:
    version = write_classifier(tmp_path / "1")
    program = version / FOLDER / "b8.jaxexport"
    program.write_bytes(program.read_bytes()[:100])
    done = check(version, "--tpu", "v5e:1x1")
    assert done.code == 6
    assert f"the program {FOLDER}/b8.jaxexport is damaged: its SHA-256 differs" in done.err
    manifest = version / "assets.extra/tpuserve/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": {}}))
    assert f"cannot read the program {FOLDER}/b8.jaxexport" in check(version, "--tpu", "v5e:1x1").err


def test_without_the_compiler_the_extra_is_named(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    done = check(classifier, "--tpu", "v5e:1x1")
    assert done.code == 10
    assert "--tpu needs libtpu. Run pip install 'tpuserve-exporter[tpu]'" in done.err


@pytest.fixture
def job() -> CompileJob:
    return CompileJob("b8.jaxexport", "v5e:1x1", 1, 1, (True,), (True,), ((),))


@pytest.mark.parametrize(
    ("module", "timeout_s", "reason"),
    [
        ("aborting_compiler", 60.0, "the compiler ended by SIGABRT: F0000 check failed: the chip is imaginary"),
        ("hanging_compiler", 0.5, "the compiler did not respond within 0.5 s"),
    ],
)
def test_a_compiler_that_dies_or_hangs_has_checked_nothing(
    job: CompileJob, module: str, timeout_s: float, reason: str
) -> None:
    start = functools.partial(CompilerProcess, timeout_s, f"tests.exporter.{module}")
    with Compilers(most=2, start=start) as compilers:
        outcomes = [outcome for _, outcome in compilers.run([job] * 3)]
    assert outcomes == [CompileOutcome("unknown", reason)] * 3
    assert str(_verdict(8, outcomes[0])) == f"not checked: {reason}"


def test_a_process_with_many_open_files_compiles(job: CompileJob) -> None:
    start = functools.partial(CompilerProcess, 60.0, "tests.exporter.aborting_compiler")
    with low_descriptors_taken(), Compilers(most=1, start=start) as compilers:
        [(_, outcome)] = compilers.run([job])
    assert outcome.reason.endswith("the chip is imaginary")


def test_breaking_off_ends_the_compilers(job: CompileJob) -> None:
    """Simulate Ctrl-C while all compilers work."""
    started: list[CompilerProcess] = []

    def start() -> CompilerProcess:
        process = CompilerProcess(module="tests.exporter.hanging_compiler")
        started.append(process)
        if len(started) == 2:
            signal.setitimer(signal.ITIMER_REAL, 0.5)  # by then both have a job
        return process

    # Other tests of this process may have left threads, such as fsspec's.
    threads = threading.enumerate()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Compilers(most=2, start=start) as compilers:
            list(compilers.run([job] * 3))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(started) == 2
    assert set(threading.enumerate()) <= set(threads)


@pytest.mark.parametrize(
    ("message", "ending", "needed", "available"),
    [
        ("RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
         "temporaries (40.00G) exceeds available HBM (15.75G). HLO module: jit_call.\nSee", "too large", 40.0, 15.75),
        ("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 18.20G of "
         "15.75G hbm. Exceeded hbm capacity by 2.45G.", "too large", 18.2, 15.75),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem", "too large", None, None),
        ("UNIMPLEMENTED: no float64 here", "refused", None, None),
        ("ABORTED: Internal error when accessing libtpu multi-process lockfile", "unknown", None, None),
        ("INTERNAL: RET_CHECK failure", "unknown", None, None),
    ],
)  # fmt: skip
def test_the_compiler_s_refusals_are_read(
    message: str, ending: str, needed: float | None, available: float | None
) -> None:
    outcome = read_refusal(message, 0.5)
    assert outcome.ending == ending
    for size, gib in ((outcome.needed_bytes, needed), (outcome.available_bytes, available)):
        assert size == (None if gib is None else int(gib * 2**30))


def _verdict(size: int, outcome: CompileOutcome, topology: TpuTopology = V5E) -> ProgramVerdict:
    program = VersionProgram("device", size, None, Path("1"), f"b{size}.jaxexport", (True,), (True,), ("w",))
    return ProgramVerdict(program, topology, DeviceMesh(), outcome)


def _compiled(**sizes: float | tuple[int, ...]) -> CompileOutcome:
    return replace(CompileOutcome("compiled"), **sizes)  # type: ignore[arg-type]  # each is of its field's type


def test_what_compiles_and_needs_more_than_there_is_does_not_fit() -> None:
    outcome = _compiled(argument_bytes=15 * 2**30, output_bytes=2**30)
    assert str(_verdict(8, outcome)) == "does not fit: needs 16.00 of 15.75 GiB, 0.25 GiB too much"
    assert _verdict(8, outcome, TpuTopology.parse("v6e:1x1")).passed


def _together(*outcomes: CompileOutcome, weights: tuple[str, ...] = ("w",)) -> VersionMemory:
    verdicts = [_verdict(8 * (number + 1), outcome) for number, outcome in enumerate(outcomes)]
    named = [replace(one, program=replace(one.program, weights=weights)) for one in verdicts]
    (memory,) = VersionMemory.of_each(named)
    return memory


def test_together_weights_are_there_once_and_programs_run_one_after_another() -> None:
    gib = 2**30
    first = _compiled(weight_bytes=(gib, 5), input_bytes=1, output_bytes=2, temporary_bytes=70, code_bytes=100)
    second = _compiled(weight_bytes=(gib, 4), input_bytes=10, output_bytes=20, temporary_bytes=60, code_bytes=200)
    memory = _together(first, second, weights=("v", "w"))
    assert memory.needed_bytes == gib + 5 + 2 * 30 + 70 + 300
    assert (memory.verdict, memory.side_by_side) == ("fits", 15)


def test_together_nothing_is_known_where_a_program_is_not_compiled() -> None:
    unknown, too_large = CompileOutcome("unknown", "died"), CompileOutcome("too large", needed_bytes=2**40)
    compiled = _compiled(weight_bytes=(1,))
    for outcome, verdict in ((unknown, "not checked"), (too_large, "does not fit")):
        memory = _together(compiled, outcome)
        assert (memory.verdict, memory.is_too_much, memory.needed_bytes) == (verdict, False, None)
        assert memory.to_json()["hbm_bytes"]["weights"] is None


def test_latency_is_no_less_than_arithmetic_and_memory_take() -> None:
    by_flops = _verdict(8, _compiled(argument_bytes=8, bytes_accessed=8.0, flops=197e12)).latency
    assert by_flops is not None
    assert (by_flops.lower_s, by_flops.upper_s) == pytest.approx((1.0, 1.0))
    by_bytes = _verdict(8, _compiled(argument_bytes=819 * 10**6, bytes_accessed=3 * 819e6)).latency
    assert by_bytes is not None
    assert (by_bytes.lower_s, by_bytes.upper_s) == pytest.approx((1e-3, 3e-3))
    # A table of which a program reads only some rows.
    rows = _verdict(8, _compiled(argument_bytes=8 * 2**30, bytes_accessed=819e3, flops=0.0)).latency
    assert rows is not None
    assert rows.lower_s == pytest.approx(1e-6)
    assert _verdict(8, CompileOutcome("unknown")).latency is None


def test_batch_sizes_that_take_as_long_as_the_next_are_not_suggested() -> None:
    took = {1: 1e9, 2: 5e9, 4: 5.1e9, 8: 5.2e9, 16: 10e9}
    verdicts = [_verdict(size, _compiled(bytes_accessed=moved)) for size, moved in took.items()]
    too_large = _verdict(32, CompileOutcome("too large", needed_bytes=2**40, available_bytes=2**34))
    assert suggest_batch_sizes([*verdicts, too_large]) == (1, 8, 16)
    assert suggest_batch_sizes([too_large]) == ()


def test_rows_wasted_are_those_of_one_row_more_than_the_next_smaller() -> None:
    assert rows_wasted([8, 1, 2, 32]) == {1: 0.0, 2: 0.0, 8: 1 - 3 / 8, 32: 1 - 9 / 32}


def test_rules_are_made_for_large_weights_alone_and_shared_by_blocks() -> None:
    large = 2**24
    weights = {
        "block_0/kernel": ((512, 1024), large),
        "block_1/kernel": ((512, 1024), large),
        "head.0/odd": ((7, 9), large),
        "scale": ((1024,), 4096),
    }
    assert [str(rule) for rule in make_rules(weights, 4)] == [r"^block_\d+/kernel$=-,model"]
    otherwise = {"block_0/kernel": ((512, 1024), large), "block_1/kernel": ((1024, 512), large)}
    assert [str(rule) for rule in make_rules(otherwise, 4)] == [
        r"^block_1/kernel$=model,-", r"^block_\d+/kernel$=-,model",
    ]  # fmt: skip


def test_constants_keep_their_values_in_bfloat16() -> None:
    blob = np.array([1.0, -2.5], np.float32).tobytes().hex().upper()
    text = (
        f'%a = stablehlo.constant dense<"0x{blob}"> : tensor<2xf32> loc("f32")\n'
        "%b = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
        "%c = stablehlo.constant dense<[0x7FC00000, 1.5]> : tensor<2xf32>\n"
        "%d = stablehlo.constant dense<0xFF800000> : tensor<i32>\n"
        "%e = stablehlo.convert %a : (tensor<2xf32>) -> tensor<2xf64>"
    )
    halved = np.array([1.0, -2.5], np.float32).view(np.uint16)[1::2].tobytes().hex().upper()
    assert rewrite(text) == (
        f'%a = stablehlo.constant dense<"0x{halved}"> : tensor<2xbf16> loc("f32")\n'
        "%b = stablehlo.constant dense<0xFF80> : tensor<bf16>\n"
        "%c = stablehlo.constant dense<[0x7FC0, 1.5]> : tensor<2xbf16>\n"
        "%d = stablehlo.constant dense<0xFF800000> : tensor<i32>\n"
        "%e = stablehlo.convert %a : (tensor<2xbf16>) -> tensor<2xf64>"
    )
