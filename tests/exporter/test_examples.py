"""The examples are found without their frameworks, and what is served otherwise than the source answers is seen."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from examples.example import Array, Example, find_names, load_example
from examples.run_all import StepFailed, compare

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


def test_an_example_without_its_packages_says_what_to_install() -> None:
    digits = load_example("digits")
    assert digits.missing == ""
    absent = Example("x", "X", digits.train, digits.requests, digits.answer, extra="x", packages=("json", "no_such"))
    assert absent.missing == "needs no_such: pip install 'tpuserve-exporter[x]'"


@pytest.mark.parametrize(
    ("served", "message"),
    [
        ({"p": np.array([0.5, 0.5]), "s": np.array(["a"], object)}, "p is off by up to 0.1"),
        ({"p": np.array([[0.4, 0.5]]), "s": np.array(["a"], object)}, r"p has shape \[1, 2\] instead of \[2\]"),
        ({"p": np.array([0.4, 0.5]), "s": np.array(["b"], object)}, "s is not what the source answers"),
        ({"p": np.array([0.4, 0.5])}, r"outputs \['p'\] instead of"),
        ({"p": np.array([np.nan, 0.5]), "s": np.array(["a"], object)}, "p is off"),
    ],
)
def test_another_answer_than_the_source_s_is_a_failure(served: Mapping[str, Array], message: str) -> None:
    expected = {"p": np.array([0.4, 0.5], np.float32), "s": np.array([b"a"], object)}
    assert max(compare(expected, {**expected, "s": np.array(["a"], object)}, 1e-5, 1e-4, "rest")) == 0.0
    with pytest.raises(StepFailed, match=message):
        list(compare(expected, served, 1e-5, 1e-4, "rest"))
