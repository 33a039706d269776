from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from tests.support.device_programs import write_weights
from tpuserve_server.core.terms.errors import DataLoss
from tpuserve_server.executors.pjrt.executor import map_weights

_DTYPES = st.sampled_from(["bool", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"])


@given(array=hnp.arrays(_DTYPES, hnp.array_shapes(min_dims=0, min_side=0)))
def test_every_array_comes_back_as_the_format_s_own_library_wrote_it(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    odd = np.arange(3, dtype=np.uint8)
    save_file({"a": odd, "b": array}, path, metadata={"format": "np"})
    found = map_weights(path)
    assert found.keys() == {"a", "b"}
    assert found["b"].dtype == array.dtype
    assert found["b"].shape == array.shape
    assert found["b"].tobytes() == array.tobytes()
    assert found["a"].tolist() == [0, 1, 2]


def test_bfloat16_is_read_as_what_it_is(tmp_path: Path) -> None:
    array = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    write_weights(tmp_path / "w", {"a": array})
    found = map_weights(tmp_path / "w")["a"]
    assert found.dtype == ml_dtypes.bfloat16
    assert found.astype(float).tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize("kept", [0, 7, 8, 20, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "weights.safetensors"
    write_weights(path, {"a": np.ones((2, 2), np.float32)})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataLoss, match=r"^weights.safetensors (is truncated|has a header that cannot be read)"):
        map_weights(path)


@pytest.mark.parametrize(
    "header",
    [b"[]", b"{", b'{"a": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}', b'{"a": {"dtype": "F32"}}']
    + [f'{{"a": {{"dtype": "F32", "shape": [1], "data_offsets": {offsets}}}}}'.encode() for offsets in ([0, 8], [4, 0])]
    + [b'{"a": {"dtype": "F32", "shape": [0, 99999999999999999999], "data_offsets": [0, 0]}}', b"[" * 100_000],
)
def test_a_header_that_is_made_up_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(DataLoss, match="header that cannot be read"):
        map_weights(path)


def test_a_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(DataLoss, match="not a safetensors file"):
        map_weights(path)
