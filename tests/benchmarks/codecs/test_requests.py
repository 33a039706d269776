"""Tests for the benchmark of small requests: it calls the front-ends' own functions."""

import pytest

from benchmarks.codecs import requests as request_codecs


def test_every_codec_and_the_rest_application_take_the_benchmarks_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_codecs, "ROUNDS", 1)
    monkeypatch.setattr(request_codecs, "CALLS", 1)
    costs = {cost.what: cost for cost in request_codecs.measure().costs}
    assert costs["REST predict (baseline: FastAPI route)"].tpuserve > 0


def test_a_refusal_is_not_timed() -> None:
    with pytest.raises(RuntimeError, match=r"/elsewhere returned .*404"):
        request_codecs.drive(request_codecs.plain_app(), "/elsewhere")
