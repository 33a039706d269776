"""Settings that no other part declares: addresses, models, the storage cache, sources of batching parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.name_rules import check_name, check_path
from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting
from tpuserve_server.core.terms.storage import FileName
from tpuserve_server.observe.logs.log_format import LogFormat
from tpuserve_server.protocols.options import check_route

ChannelArguments: TypeAlias = tuple[tuple[str, int | str], ...]

# Variables of Vertex AI's contract.
_HTTP_PORT, _HEALTH_ROUTE, _PREDICT_ROUTE = "AIP_HTTP_PORT", "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"


def _channel_arguments(text: str) -> ChannelArguments:
    """Parse `name=value,…`. Numbers become int and other values stay text, as in TensorFlow Serving."""
    return tuple(_channel_argument(part) for part in text.split(",") if part)


def _channel_argument(text: str) -> tuple[str, int | str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"expected name=value,name=value,…, got {text!r}")
    try:
        return key, int(value)
    except ValueError:
        return key, value


@dataclass(frozen=True, slots=True)
class ListeningSettings:
    """Addresses and limits of the server, with TensorFlow Serving's names and units. Port 0 disables a port.

    Raises:
        InvalidArgument: no port or socket is set, both ports are the same, or a route of Vertex AI is invalid.
    """

    port: Annotated[int, Setting("Listening", "gRPC port; 0 disables it.", at_least=0, at_most=65535)] = 8500
    rest_api_port: Annotated[
        int, Setting("Listening", "REST port; 0 disables it.", at_least=0, at_most=65535, variables=(_HTTP_PORT,))
    ] = 8501
    vertex_health_route: Annotated[
        str | None,
        Setting("Listening", "Additional path of the readiness, as Vertex AI chooses it.", variables=(_HEALTH_ROUTE,)),
    ] = None
    vertex_predict_route: Annotated[
        str | None,
        Setting(
            "Listening",
            "Additional path of predictions of the model, as Vertex AI chooses it.",
            variables=(_PREDICT_ROUTE,),
        ),
    ] = None
    grpc_socket_path: Annotated[
        Path | None, Setting("Listening", "Path of a UNIX socket for gRPC, in addition to the port.")
    ] = None
    bind_address: Annotated[str, Setting("Listening", "Address to bind both ports to.")] = "0.0.0.0"
    ports_wait_for_models: Annotated[
        bool,
        Setting(
            "Listening",
            "Open the ports and the UNIX socket after every model has loaded or failed, as TensorFlow Serving does. "
            "false: open them at once.",
        ),
    ] = False
    ssl_config_file: Annotated[
        FileName | None, Setting("Listening", "File with an SSLConfig: TLS for gRPC and REST.")
    ] = None
    tls_cert_file: Annotated[
        FileName | None,
        Setting(
            "Listening",
            "PEM file with the server's certificate, then its intermediate certificates, such as tls.crt: TLS for gRPC "
            "and REST without an SSLConfig. Needs tls_key_file.",
        ),
    ] = None
    tls_key_file: Annotated[
        FileName | None, Setting("Listening", "PEM file with the private key of tls_cert_file, such as tls.key.")
    ] = None
    tls_client_ca_file: Annotated[
        FileName | None,
        Setting(
            "Listening",
            "PEM file with the authorities of clients, such as ca.crt. Each client must present a certificate of one.",
        ),
    ] = None
    ssl_config_file_poll_wait_seconds: Annotated[
        float,
        Setting(
            "Listening",
            "Interval between checks of the files of the certificates for new ones; 0 checks after SIGHUP alone.",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 60.0
    grpc_channel_arguments: Annotated[
        ChannelArguments,
        Setting(
            "Listening",
            "Channel arguments of the gRPC server, such as grpc.max_connection_age_ms=2000.",
            parse=_channel_arguments,
        ),
    ] = ()
    # 0 or less disables the timeout, as upstream.
    rest_api_timeout_in_ms: Annotated[int, Setting("Listening", "Timeout of a REST request; 0 disables it.")] = 30000
    rest_api_enable_cors_support: Annotated[
        bool, Setting("Listening", "Allow pages of other origins to call REST.")
    ] = False
    max_request_bytes: Annotated[
        int, Setting("Listening", "Maximum size of a gRPC message or a REST body.", at_least=1, below=2**31)
    ] = 64 * 2**20

    def __post_init__(self) -> None:
        self._check_certificate_files()
        if self.port == 0 and self.rest_api_port == 0 and self.grpc_socket_path is None:
            raise InvalidArgument(
                "the server has no address to listen on: port and rest_api_port are 0, and grpc_socket_path is not "
                "set. Set one of them"
            )
        if self.port and self.port == self.rest_api_port:
            raise InvalidArgument(f"port and rest_api_port are both {self.port}; they must differ")
        for setting, route in (self.health_route, self.predict_route):
            if route is not None and self.rest_api_port == 0:
                raise InvalidArgument(f"{setting} needs the REST port, but rest_api_port ({_HTTP_PORT}) is 0")
            if route is not None:
                check_route(setting, route)

    def _check_certificate_files(self) -> None:
        if self.ssl_config_file is not None and len(self.certificate_files) > 1:
            raise InvalidArgument(
                "ssl_config_file and tls_cert_file are two sources of the certificate. Set ssl_config_file alone, or "
                "tls_cert_file and tls_key_file"
            )
        if self.tls_cert_file is not None and self.tls_key_file is None:
            raise InvalidArgument("tls_cert_file needs tls_key_file, the private key of the certificate")
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise InvalidArgument("tls_key_file needs tls_cert_file, the certificate of the key")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise InvalidArgument(
                "tls_client_ca_file needs tls_cert_file and tls_key_file, because it is a part of TLS"
            )

    @property
    def certificate_files(self) -> Mapping[str, FileName]:
        """The files of the certificates, by setting. Without TLS, there are none."""
        names = ("ssl_config_file", "tls_cert_file", "tls_key_file", "tls_client_ca_file")
        return {name: path for name in names if (path := getattr(self, name)) is not None}

    @property
    def has_vertex_routes(self) -> bool:
        """Whether Vertex AI, or the operator, has chosen a route."""
        return self.vertex_health_route is not None or self.vertex_predict_route is not None

    @property
    def health_route(self) -> tuple[str, str | None]:
        """Vertex AI's health route, after its name for messages."""
        return f"vertex_health_route ({_HEALTH_ROUTE})", self.vertex_health_route

    @property
    def predict_route(self) -> tuple[str, str | None]:
        """Vertex AI's predict route, after its name for messages."""
        return f"vertex_predict_route ({_PREDICT_ROUTE})", self.vertex_predict_route

    @property
    def rest_timeout_s(self) -> float:
        """Timeout of a REST request in seconds; inf for none."""
        return self.rest_api_timeout_in_ms / 1000 if self.rest_api_timeout_in_ms > 0 else math.inf


# Variable of Vertex AI's contract.
_STORAGE_URI = "AIP_STORAGE_URI"
# Variable of TensorFlow Serving's image: the directory of its models.
BASE_ROOT_VARIABLE = "MODEL_BASE_PATH"
# Name of the setting for messages.
ARTIFACT_SETTING = f"model_artifact_uri ({_STORAGE_URI})"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Models to serve, and the intervals of the polls for changes.

    Raises:
        InvalidArgument: no model is named, `model_artifact_uri` is a relative path, or a text has control characters.
    """

    model_name: Annotated[
        str, Setting("Models", "Name of the model in requests.", variables=("MODEL_NAME",), min_length=1)
    ] = "default"
    # An absolute path of a directory, or a URI such as gs://bucket/models/m. Ignored if model_config_file is set.
    model_base_path: Annotated[
        str | None,
        Setting(
            "Models",
            "Directory that contains the version directories, or its URI. Default: MODEL_BASE_PATH/MODEL_NAME, as in "
            "TensorFlow Serving's image.",
        ),
    ] = None
    model_artifact_uri: Annotated[
        str | None,
        Setting(
            "Models",
            "Directory or URI of a model: of its version directories, or of one version, which may have any name. Used "
            "without model_base_path and model_config_file.",
            variables=(_STORAGE_URI,),
        ),
    ] = None
    model_config_file: Annotated[
        FileName | None,
        Setting(
            "Models",
            "File with a ModelServerConfig that lists the models. The server then ignores model_name and "
            "model_base_path.",
        ),
    ] = None
    model_config_file_poll_wait_seconds: Annotated[
        float,
        Setting(
            "Models",
            "Interval between checks of that file for changes; 0 checks after SIGHUP alone.",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 0.0
    file_system_poll_wait_seconds: Annotated[
        float,
        Setting("Models", "Interval between checks for new versions; 0 checks once.", at_least=0, at_most=MAX_WAIT_S),
    ] = 1.0
    allow_version_labels_for_unavailable_models: Annotated[
        bool, Setting("Models", "Accept a new label for a version that is not available yet.")
    ] = False
    allow_reload_without_models: Annotated[
        bool, Setting("Models", "Accept a reload or a changed configuration file that removes every model.")
    ] = False
    require_signed: Annotated[
        FileName | None,
        Setting(
            "Models",
            "File with public keys (PEM), ed25519 or ECDSA. The server loads only versions that one of these keys has "
            "signed.",
        ),
    ] = None

    def __post_init__(self) -> None:
        artifact = self.model_artifact_uri
        check_name("model_name", self.model_name)
        check_path("model_base_path", self.model_base_path or "")
        check_path(ARTIFACT_SETTING, artifact or "")
        if artifact is not None and not (artifact.startswith("/") or "://" in artifact):
            raise InvalidArgument(
                f"{ARTIFACT_SETTING} must be an absolute path or a URI such as gs://bucket/model; was {artifact!r}"
            )
        if self.model_base_path is None and self.model_config_file is None and artifact is None:
            raise InvalidArgument(
                "the server has no model to serve. Set --model_base_path=DIRECTORY (the directory that contains "
                "version directories such as 1/) or --model_config_file=FILE, or the variables MODEL_BASE_PATH and "
                "MODEL_NAME"
            )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Cache for versions from object stores. Its default is a directory among the user's caches."""

    storage_cache_dir: Annotated[
        Path | None,
        Setting(
            "Models",
            "Directory for copies of versions from object stores.",
            shown_default="tpuserve in $XDG_CACHE_HOME or ~/.cache",
            is_cache=True,
        ),
    ] = None
    storage_cache_max_bytes: Annotated[
        int,
        Setting(
            "Models", "Maximum total size of those copies; the server evicts copies that are not in use.", at_least=0
        ),
    ] = 64 * 2**30


@dataclass(frozen=True, slots=True)
class BatchingSource:
    """Switch of batching, and the sources of its parameters.

    Raises:
        InvalidArgument: `batching_parameters_file` is set, but batching is not enabled.
    """

    enable_batching: Annotated[
        bool | None,
        Setting(
            "Batching",
            "Batch requests. Unset: those of signatures that the exporter has checked. true: those of every signature "
            "whose first dimension is free.",
        ),
    ] = None
    batching_parameters_file: Annotated[
        FileName | None, Setting("Batching", "File with BatchingParameters; requires enable_batching.")
    ] = None
    enable_per_model_batching_parameters: Annotated[
        bool, Setting("Batching", "Read batching_params.pbtxt from each version directory.")
    ] = False

    def __post_init__(self) -> None:
        if self.batching_parameters_file is not None and not self.enable_batching:
            # TensorFlow Serving's rule and message.
            raise InvalidArgument(
                "batching_parameters_file is set without setting enable_batching to true: add --enable_batching"
            )


Profile: TypeAlias = Literal["default", "edge"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the server as a whole, and those that more than one part gets."""

    profile: Annotated[
        Profile,
        Setting(
            "Listening",
            "Defaults of other flags. edge: for clients on the open internet; needs TLS and a flag of Access.",
        ),
    ] = "default"
    device_slots: Annotated[
        int,
        Setting(
            "Batching",
            "Maximum number of batches of all models that run at the same time; 0: no limit while all models have the "
            "same scheduling_weight, otherwise the number of cores.",
            at_least=0,
        ),
    ] = 0
    enable_signature_method_name_check: Annotated[
        bool, Setting("Runtime", "Check a signature's method_name in Classify and Regress.")
    ] = False
    enable_kserve_v1_readiness: Annotated[
        bool,
        Setting(
            "Runtime",
            "Add `name` and `ready` to the status of a model over REST, for KServe's v1 clients. Clients of TensorFlow "
            "Serving may refuse unknown fields.",
        ),
    ] = False
    enable_serialization_as_tensor_content: Annotated[
        bool, Setting("Runtime", "Send tensors of gRPC Predict as tensor_content instead of typed fields.")
    ] = False
    lenient_shapes: Annotated[
        bool,
        Setting(
            "Runtime",
            "Pass inputs to a model whose rank or dimensions differ from its signature, as TensorFlow Serving does. "
            "Some operations end the server's process for them.",
        ),
    ] = False
    monitoring_config_file: Annotated[
        FileName | None, Setting("Operations", "File with a MonitoringConfig: the path of the metrics for Prometheus.")
    ] = None
    enable_profiler: Annotated[bool, Setting("Operations", "Serve TensorBoard's profiler on the gRPC port.")] = True
    log_format: Annotated[
        LogFormat,
        Setting(
            "Operations",
            "Format of the server's log: lines of text, colored lines for a console, or JSON. auto: console on a "
            "terminal, otherwise text.",
            variables=("TPUSERVE_LOG_FORMAT",),
        ),
    ] = "auto"
