"""Tests for device programs in the real server: host parts on the CPU, device parts through PJRT."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.e2e.running_server import run_server
from tests.exporter import builders, device_builders
from tests.exporter.conftest import Finished
from tpuserve_client import Client

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.slow,
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
PROGRAMS = ("--device-programs", "--batch-sizes", "1,4")


def test_pictures_are_decoded_on_the_host(export: Export, tmp_path: Path) -> None:
    model = builders.pictures()
    model.save(tmp_path / "model.keras")
    signatures = ("--signature", "serving_default=tensor", "--signature", "photo=image_bytes,scale=0..1")
    assert export(tmp_path / "model.keras", tmp_path / "m", *signatures, *PROGRAMS).code == 0
    raw = np.random.default_rng(1).integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
    with (
        run_server(tmp_path / "m", tmp_path / "log", "--device=cpu") as server,
        Client(server.grpc) as client,
    ):
        photo = client.predict(
            "m", {"image_bytes": np.array([png(one) for one in raw], object)}, signature_name="photo"
        )
        plain = client.predict("m", {"image": (raw / 255).astype(np.float32)})
    expected = model((raw / 255).astype(np.float32))
    for name in ("probabilities", "area"):
        np.testing.assert_allclose(photo[name], expected[name], atol=1e-5)
        np.testing.assert_allclose(plain[name], expected[name], atol=1e-5)
    assert "PJRT" in (tmp_path / "log").read_text()


def test_words_are_looked_up_on_the_host(export: Export, tmp_path: Path) -> None:
    model = device_builders.texts()
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "check.npz", text=np.array([b"one two", b"zero", b"two seven one", b"one"]))
    text = ("--signature", "serving_default=tests.exporter.signature_functions:any_words")
    rest = ("--check", tmp_path / "check.npz", "--sequence-buckets", "4,8")
    assert export(tmp_path / "model.keras", tmp_path / "m", *text, *rest, *PROGRAMS).code == 0
    with (
        run_server(tmp_path / "m", tmp_path / "log", "--device=cpu") as server,
        Client(server.grpc) as client,
    ):
        served = client.predict("m", {"text": np.array([b"two one zero one two", b"seven"], object)})
    expected = model(np.array([[3, 2, 1, 2, 3], [4, 0, 0, 0, 0]], np.int32))
    np.testing.assert_allclose(served["scores"], expected, atol=1e-5)
    assert "PJRT" in (tmp_path / "log").read_text()


def png(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "png")
    return written.getvalue()
