"""Tests of the arithmetic in docs/how-to/deploy/sizing.md."""

import re

import pytest

from tests.deploy.dockerfile import ROOT
from tpuserve_exporter.deployment.capacity import Capacity, Demand
from tpuserve_formats.price import Price
from tpuserve_loadtests.judgement.spending import Spending

TEXT = (ROOT / "docs/how-to/deploy/sizing.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (v5e:1x1|v6e:1x1|CPU) \| (.*) \|$", re.MULTILINE)
RATE_PER_S = 20_000.0


@pytest.mark.parametrize(("machine", "cells"), _ROW.findall(TEXT))
def test_the_worked_example_follows_the_formulas(machine: str, cells: str) -> None:
    price, capacity, replicas, *costs = cells.replace(",", "").split(" | ")
    demand = Demand(RATE_PER_S, Capacity(float(capacity), 1, ("p99<=100ms",), "digits"), headroom=1)
    assert replicas == f"{demand.for_load} + {demand.headroom}"
    hour = demand.replicas * float(price)
    full = Spending(float(capacity), 1, Price(float(price))).per_million_predictions
    expected = (hour, Spending(RATE_PER_S, 1, Price(hour)).per_million_predictions, full)
    assert [float(cost) for cost in costs] == pytest.approx(expected, rel=2e-3)


def test_every_machine_is_in_the_example() -> None:
    assert [machine for machine, _ in _ROW.findall(TEXT)] == ["v5e:1x1", "v6e:1x1", "CPU"]
