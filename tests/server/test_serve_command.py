from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tpuserve_server.__main__ import serve


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner(env={"MODEL_BASE_PATH": None, **environment}).invoke(serve, arguments, prog_name="tpuserve serve")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no model to serve: give --model_base_path=FOLDER"),
        (("--model_base_path=/m", "--prot=1"), "No such option '--prot'. Did you mean '--port'?"),
        (
            ("--model_base_path=/m", "--port=7", "--rest_api_port=7"),
            "port and rest_api_port are both 7; they must differ",
        ),
        (("--model_base_path=/m", "--port=70000"), "--port: Input should be less than or equal to 65535"),
        (("--model_base_path=/m", "--allowed_batch_sizes=1,x"), "'1,x' is not a list of whole numbers such as 1,8,32"),
        (("--model_base_path=/m", "--enable_batching=perhaps"), "'perhaps' is not a valid boolean"),
        (("--model_base_path=/m", "--host_backend=apache"), "'apache' is not one of 'envoy', 'python', 'auto'"),
    ],
)
def test_wrong_flags_say_what_to_do_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_port_in_the_environment_is_checked_like_a_flag() -> None:
    result = invoke("--model_base_path=/m", TPUSERVE_SERVE_PORT="70000")
    assert result.exit_code == 2
    assert "--port: Input should be less than or equal to 65535" in result.output


def test_the_images_environment_names_the_folder_of_models(tmp_path: Path) -> None:
    # Both ports off: refused after the path was found, before anything is served.
    result = invoke("--port=0", "--rest_api_port=0", MODEL_NAME="digits", MODEL_BASE_PATH=str(tmp_path))
    assert result.exit_code == 2
    assert "nothing to listen on" in result.output


def test_help_shows_examples_and_exit_codes() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "MODEL_NAME=digits MODEL_BASE_PATH=/models tpuserve serve" in result.output
    assert "0    drained after SIGTERM" in result.output
