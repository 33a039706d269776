"""Tests of the line that an error of another library is shown with."""

import pytest

from tpuserve_exporter.errors import reason_of

_STACK = '  File "/bin/tpuserve-export", line 7, in <module>\n\n  File "/keras/layer.py", line 117, in call\n\n'


@pytest.mark.parametrize("stack", [_STACK, "<stack traces unavailable>\n"])
def test_the_stack_of_a_node_is_not_its_reason(stack: str) -> None:
    text = (
        "Graph execution error:\n\nDetected at node words/GatherV2 defined at (most recent call last):\n"
        f"{stack}indices[0,0] = -100 is not in [0, 20)\n\t [[{{{{node words/GatherV2}}}}]] [Op:__inference_call_7]"
    )
    assert reason_of(ValueError(text)) == "indices[0,0] = -100 is not in [0, 20)"
