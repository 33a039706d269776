"""Tests for the verdict on the models that are candidates for TPUs."""

import numpy as np
import pytest

from benchmarks.devices.tpu_models import Outcome, StepFailed, compare, imported, read_parity, summarise


def row(verdict: str = "compiles and fits", needed: int = 2**20) -> dict[str, object]:
    return {"verdict": verdict, "hbm_bytes": {"needed": needed}}


def test_one_program_that_does_not_fit_decides() -> None:
    assert summarise([row(), row(needed=5 * 2**20), row(needed=2**20)]) == "fits 5 MiB"
    assert summarise([row(), row("does not fit"), row()]) == "does not fit"


def test_packages_are_read_from_pythons_list_of_imports() -> None:
    log = "import time:  12 |  34 |   jax.numpy\nimport time: 1 | 2 | tensorflow.python\nready for tensorboard\n"
    assert imported(log) == {"jax", "tensorflow"}


def test_an_answer_that_is_not_tensorflows_is_noticed() -> None:
    outcome = Outcome("")
    want, near, far = ({"y": np.array([1.0, value], np.float32)} for value in (2.0, 2.001, 2.1))
    compare([want], [near], 0.01, 0.0, outcome)
    assert outcome.served_equal
    with pytest.raises(StepFailed, match=r"y differs by up to 0\.1"):
        compare([want], [far], 0.01, 0.0, Outcome(""))
    with pytest.raises(StepFailed, match=r"shape \[1\], expected \[2\]"):
        compare([want], [{"y": np.ones(1, np.float32)}], 0.01, 0.0, Outcome(""))


def test_a_program_that_nobody_compared_is_noticed() -> None:
    def bucket(size: int, way: str, difference: float) -> dict[str, object]:
        return {"batch_size": size, "loaded_by": way, "outputs": {"y": {"max_abs_difference": difference}}}

    buckets = [bucket(1, "session", 0.5), bucket(1, "program", 0.1), bucket(8, "program", 0.2)]
    programs: list[object] = [{}, {}]
    manifest = {
        "device": {"parts": {"device": {"programs": programs}}},
        "parity": {"signatures": {"serving_default": {"buckets": buckets}}},
    }
    outcome = Outcome("")
    read_parity(manifest, outcome)
    assert (outcome.programs, outcome.program_difference) == (2, 0.2)
    programs.append({})
    with pytest.raises(StepFailed, match="did not compare every program"):
        read_parity(manifest, outcome)
