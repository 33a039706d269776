import jax
import pytest

from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.executors.pjrt.failures import device_errors


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.\nBufferAssignment OOM",
            Code.RESOURCE_EXHAUSTED,
            "The run failed, the device is out of memory: Out of memory while trying to allocate 4294967296 bytes.",
        ),
        ("INVALID_ARGUMENT: no such thing", Code.INVALID_ARGUMENT, "The run failed: no such thing"),
        ("UNAVAILABLE: \n the chip is gone", Code.UNAVAILABLE, "The run failed: the chip is gone"),
        ("SOMETHING_NEW: of this", Code.INTERNAL, "The run failed: SOMETHING_NEW: of this"),
        ("no code at all\nand a stack", Code.INTERNAL, "The run failed: no code at all"),
    ],
)
def test_what_xla_raises_has_its_code_and_one_line(raised: str, code: Code, message: str) -> None:
    with pytest.raises(ServingError) as caught, device_errors("The run"):
        raise jax.errors.JaxRuntimeError(raised)
    assert caught.value.code is code
    assert caught.value.message == message


def test_other_errors_are_left_as_they_are() -> None:
    with pytest.raises(KeyError), device_errors("The run"):
        raise KeyError("x")
