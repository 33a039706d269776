"""`tpuserve serve`: flags and environment to settings, then the host that carries the server."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from tpuserve_server.hosts.application import HostError, HostOptions
from tpuserve_server.hosts.selection import Selection, select_host
from tpuserve_server.logs import configure_logging
from tpuserve_server.process import build_server
from tpuserve_server.settings import HOST_NOTE_VARIABLE, SETTINGS_VARIABLE, Settings

logger = logging.getLogger(__name__)

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

# Not TPUSERVE alone: beside a Service named tpuserve Kubernetes sets TPUSERVE_PORT=tcp://… in every pod.
ENVIRONMENT_PREFIX = "TPUSERVE_SERVE"

_EPILOG = """\b
Examples:
  tpuserve serve --model_name=digits --model_base_path=/models/digits
  tpuserve serve --port=9000 --rest_api_port=9001 --model_base_path=/models/digits --bind_address=127.0.0.1
  MODEL_NAME=digits MODEL_BASE_PATH=/models tpuserve serve      # as TensorFlow Serving's image: /models/digits

Every flag can be set in the environment too, as TPUSERVE_SERVE_ and its name in capitals.

\b
Exit codes:
  0    drained after SIGTERM or Ctrl-C
  1    the server could not start, or ended by itself
  2    wrong flags
  128+ a second signal forced it: 128 and the signal's number
"""


class _Sizes(click.ParamType[tuple[int, ...]]):
    """`1,8,32`"""

    name = "n,n,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:  # noqa: ANN401 - click's signature
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 1,8,32", param, ctx)


def _switch(name: str, default: bool | None, text: str) -> Callable[[_Decorated], _Decorated]:
    """A boolean flag as TensorFlow Serving's: `--x`, `--x=true`, `--x=false`."""
    return click.option(
        f"--{name}",
        type=bool,
        default=default,
        is_flag=False,
        flag_value=True,
        metavar="BOOL",
        show_default=True,
        help=text,
    )


@click.command(
    context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX, "show_default": True, "max_content_width": 110},
    epilog=_EPILOG,
)
@click.option("--port", type=int, default=8500, help="Port of gRPC; 0 for none.")
@click.option("--rest_api_port", type=int, default=8501, help="Port of REST; 0 for none.")
@click.option("--grpc_socket_path", type=click.Path(path_type=Path), help="UNIX socket of gRPC, beside the port.")
@click.option("--bind_address", default="0.0.0.0", help="Address that both ports are bound to.")
@click.option(
    "--host_backend",
    type=click.Choice(["envoy", "python", "auto"]),
    default="auto",
    help="Who speaks HTTP: Envoy, grpcio with uvicorn, or Envoy where it runs.",
)
@click.option(
    "--model_name",
    envvar=["TPUSERVE_SERVE_MODEL_NAME", "MODEL_NAME"],
    default="default",
    help="Name that requests use.",
)
@click.option(
    "--model_base_path",
    type=click.Path(path_type=Path),
    help="Folder of version folders. Without it MODEL_BASE_PATH/MODEL_NAME, as in TensorFlow Serving's image.",
)
@click.option(
    "--file_system_poll_wait_seconds", type=float, default=1.0, help="Between looks for new versions; 0 looks once."
)
@click.option("--num_load_threads", type=int, default=1, help="Models loaded at the same time.")
@_switch("enable_model_warmup", True, "Run recorded requests and every batch size before a version is available.")
@_switch(
    "enable_batching", None, "Unset: batch what the exporter has checked. true: whatever has a free first dimension."
)
@click.option(
    "--max_batch_size", type=int, help="Most rows in a batch.  [default: the manifest's, else 1000]", show_default=False
)
@click.option(
    "--allowed_batch_sizes",
    type=_Sizes(),
    default=(),
    show_default=False,
    help="Batches are padded up to one of these; the last must be max_batch_size.",
)
@click.option("--max_enqueued_batches", type=int, default=512, help="Batches that may wait; more are refused.")
@click.option(
    "--tensorflow_intra_op_parallelism", type=int, default=0, help="Threads of one operation; 0: as many as cores."
)
@click.option(
    "--tensorflow_inter_op_parallelism",
    type=int,
    default=0,
    help="Operations at the same time; 0: one after the other, in the batch's thread.",
)
@_switch("bfloat16_kernels", True, "Use the CPU's bfloat16 kernels where the exporter allows it and the CPU has them.")
@click.option("--rest_api_timeout_in_ms", type=int, default=30000, help="Longest time for a REST request.")
@click.option("--max_request_bytes", type=int, default=64 * 2**20, help="Largest gRPC message or REST body.")
@click.option(
    "--drain_delay_seconds", type=float, default=0.0, help="After SIGTERM: say not ready this long before closing."
)
@click.option(
    "--drain_timeout_seconds", type=float, default=30.0, help="Longest wait for requests in flight at the end."
)
@click.version_option(package_name="tpuserve-server", prog_name="tpuserve serve")
def serve(model_base_path: Path | None, **flags: Any) -> None:  # noqa: ANN401 - validated by Settings
    """Serve models over gRPC and REST, as TensorFlow Serving does, until SIGTERM or Ctrl-C."""
    settings = _validate(model_base_path=_base_path(model_base_path, flags["model_name"]), **flags)
    configure_logging()
    try:
        status = _run(select_host(settings.host_backend), settings)
    except HostError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(status)


def _base_path(flag: Path | None, model_name: str) -> Path:
    parent = os.environ.get("MODEL_BASE_PATH")
    if flag is not None:
        return flag
    if parent:
        return Path(parent, model_name)
    raise click.UsageError(
        "no model to serve: give --model_base_path=FOLDER (the folder that holds version folders such as 1/), or set "
        "MODEL_BASE_PATH and MODEL_NAME"
    )


def _validate(**values: Any) -> Settings:  # noqa: ANN401 - validated here
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        flag = "".join(f"--{part}: " for part in first["loc"])
        raise click.UsageError(f"{flag}{first['msg'].removeprefix('Value error, ')}") from error


def _run(selection: Selection, settings: Settings) -> int:
    options = HostOptions(
        bind_address=settings.bind_address,
        grpc_port=settings.port or None,
        rest_port=settings.rest_api_port or None,
        grpc_socket_path=str(settings.grpc_socket_path) if settings.grpc_socket_path else None,
        max_message_bytes=settings.max_request_bytes,
        max_body_bytes=settings.max_request_bytes,
        drain_delay_s=settings.drain_delay_seconds,
        drain_timeout_s=settings.drain_timeout_seconds,
    )
    host_note = f"{selection.backend}: {selection.reason}"
    logger.info("Host %s", host_note)
    if selection.backend == "envoy":
        # The supervisor stays light: TensorFlow is imported by the process that Envoy embeds, and by no other.
        from tpuserve_server.hosts import envoy

        environment = {SETTINGS_VARIABLE: settings.model_dump_json(), HOST_NOTE_VARIABLE: host_note}
        return envoy.run("tpuserve_server.embedded:asgi", options, environment)
    from tpuserve_server.hosts import python

    return python.run(lambda: build_server(settings, host_note), options)


def main() -> None:
    """Entry point of `tpuserve-serve`."""
    serve(prog_name="tpuserve serve")


if __name__ == "__main__":
    main()
