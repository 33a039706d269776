"""Tests that the examples are found without their frameworks and that they report outputs that differ."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from examples.difference import Differs, largest_difference
from examples.example import Array, Example, find_names, load_example
from examples.trained import TrainingFailed, train_apart

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", find_names())
def test_every_example_is_well_formed_and_in_the_readme(name: str) -> None:
    assert isinstance(load_example(name), Example)
    assert f"\n| `{name}` | " in (ROOT / "examples/README.md").read_text()


def test_listing_the_examples_imports_no_framework() -> None:
    look = (
        "import sys\nfrom examples.example import find_names, load_example\n"
        "for name in find_names(): load_example(name)\n"
        "print([name for name in ('tensorflow', 'keras', 'jax', 'torch', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_example_without_its_packages_reports_the_command_to_run() -> None:
    digits = load_example("digits")
    assert digits.missing == ""
    absent = Example("x", "X", digits.train, digits.requests, digits.answer, extra="x", packages=("json", "no_such"))
    assert absent.missing == "no_such is not installed. Run: pip install 'tpuserve-exporter[x]'"


@pytest.mark.parametrize(
    ("served", "message"),
    [
        ({"p": np.array([0.5, 0.5]), "s": np.array(["a"], object)}, "p differs by up to 0.1"),
        ({"p": np.array([[0.4, 0.5]]), "s": np.array(["a"], object)}, r"p has shape \[1, 2\], expected \[2\]"),
        ({"p": np.array([0.4, 0.5]), "s": np.array(["b"], object)}, r"s is \[b'b'\], expected \[b'a'\]"),
        ({"p": np.array([0.4, 0.5])}, r"outputs are \['p'\], expected"),
        ({"p": np.array([np.nan, 0.5]), "s": np.array(["a"], object)}, "p differs"),
    ],
)
def test_another_answer_than_the_source_s_is_a_failure(served: Mapping[str, Array], message: str) -> None:
    expected = {"p": np.array([0.4, 0.5], np.float32), "s": np.array([b"a"], object)}
    assert largest_difference(expected, {**expected, "s": np.array(["a"], object)}, 1e-5, 1e-4) == 0.0
    with pytest.raises(Differs, match=message):
        largest_difference(expected, served, 1e-5, 1e-4, dtypes=False)


def test_failed_training_is_reported_in_one_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with pytest.raises(TrainingFailed, match=r"^ModuleNotFoundError: No module named 'examples\.no_such'$"):
        train_apart("no_such", tmp_path, log)
    assert "Traceback" in log.read_text()
    with pytest.raises(TrainingFailed, match="The training process exited with status 1"):
        train_apart("digits", tmp_path, tmp_path / "no folder" / "train.log")


@pytest.mark.slow
@pytest.mark.xdist_group("exporter")
def test_examples_go_all_the_way_by_the_real_commands(tmp_path: Path) -> None:
    names = ["iris_saved_model", "ensemble"]
    command = [sys.executable, "examples/run_all.py", "--only", ",".join(names), "--work", str(tmp_path), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["ok"]
    assert [example["name"] for example in document["examples"]] == names
    for example in document["examples"]:
        assert (example["exported"], example["served_equal"], example["error"]) == (True, True, "")
        differences = ("parity_max_difference", "grpc_max_difference", "rest_max_difference")
        assert max(example[name] for name in differences) < 1e-6
    for base_path in ("iris_saved_model/models/iris_saved_model", "ensemble/models/decoder"):
        assert (tmp_path / base_path / "1/saved_model.pb").is_file()


def test_an_unknown_example_is_reported_with_the_known_ones() -> None:
    command = [sys.executable, "examples/run_all.py", "--only", "digits,no_such"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Unknown example no_such. The examples are " in done.stderr
