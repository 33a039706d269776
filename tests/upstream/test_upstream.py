"""TensorFlow Serving's own tests, if there is a clone of them, and the table of their outcomes."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.upstream.outcomes import counted, read_outcomes, table
from tests.upstream.run import TEST_FILE, main, run_tests

REPORT = """
<testsuites><testsuite name="T">
  <testcase name="testPredictREST" status="run" result="completed" />
  <testcase name="testPredictUDS" status="run" result="completed"><error message="no answer" /></testcase>
  <testcase name="testClassify" status="run" result="completed"><failure message="1 != 2" /></testcase>
  <testcase name="test_session" status="notrun" result="suppressed" />
  <testcase name="test_tf_text" status="run" result="completed"><error message="no op" /></testcase>
</testsuite></testsuites>
"""


def test_a_report_becomes_a_table(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    outcomes = read_outcomes(report)
    assert table(outcomes).splitlines() == [
        "| test | outcome |",
        "| --- | --- |",
        "| testPredictREST | passed |",
        "| testPredictUDS | failed |",
        "| testClassify | failed |",
        "| test_tf_text (not counted: needs TF Text) | failed |",
        "| **passed** | **1 of 3** |",
    ]


def test_a_folder_that_is_no_clone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run", "--checkout", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"does not contain {TEST_FILE}. Clone github.com/tensorflow/serving." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tensorflow_servings_own_tests_pass() -> None:
    checkout = os.environ.get("TPUSERVE_UPSTREAM_CHECKOUT")
    if not checkout:
        pytest.skip("TPUSERVE_UPSTREAM_CHECKOUT names no clone of github.com/tensorflow/serving")
    if importlib.util.find_spec("portpicker") is None:
        pytest.skip("the tests import portpicker: use `make upstream CHECKOUT=DIR`")
    outcomes = counted(run_tests(Path(checkout)))
    assert outcomes
    assert [name for name, outcome in outcomes.items() if outcome != "passed"] == []
