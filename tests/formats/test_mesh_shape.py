import pytest

from tpuserve_formats.errors import FormatError
from tpuserve_formats.mesh_shape import MeshShape


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("data=2,model=4", MeshShape(2, 4)),
        ("model=4, data=2", MeshShape(2, 4)),
        ("data=8", MeshShape(8, 1)),
        ("model=16", MeshShape(1, 16)),
    ],
)
def test_axes_are_read_in_any_order_and_may_be_left_out(text: str, shape: MeshShape) -> None:
    assert MeshShape.parse(text) == shape
    assert MeshShape.parse(str(shape)) == shape
    assert shape.devices == shape.data * shape.model


@pytest.mark.parametrize(
    "text", ["", "2,4", "data=x", "data=0", "data=-1", "data=2,data=2", "rows=2", "data=2;model=4"]
)
def test_what_is_no_mesh_is_refused_with_what_came(text: str) -> None:
    with pytest.raises(FormatError, match=r"expected data=N,model=M") as caught:
        MeshShape.parse(text)
    assert repr(text) in str(caught.value)
