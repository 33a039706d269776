"""Preparation of a target before any load: addresses, the model's signature, and matching requests."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias

import click

from tpuserve_client import errors
from tpuserve_client.address import parse_address
from tpuserve_client.dtypes import Array
from tpuserve_client.handshake import handshake_problem
from tpuserve_client.model import DEFAULT_SIGNATURE_NAME, ModelSpec, Signature
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.options import (
    CONTROL_KEY_FILE,
    CONTROL_KEY_VARIABLE,
    HEADER,
    KEY_FILE,
    KEY_VARIABLE,
    GeneratorOptions,
    RequestOptions,
)
from tpuserve_loadtests.golden.golden_file import GoldenRows
from tpuserve_loadtests.judgement.exit_codes import EXIT_GENERATOR, EXIT_UNREACHABLE
from tpuserve_loadtests.requests import openai
from tpuserve_loadtests.requests.arrays import (
    BadInput,
    Request,
    array_requests,
    fitted,
    own_requests,
    read_inputs,
)
from tpuserve_loadtests.requests.distribution import Distribution
from tpuserve_loadtests.requests.protocols import Protocol, client_address, is_oip, shown_address
from tpuserve_loadtests.requests.recording import BadRecording, Recording, read_golden_version, recorded_requests
from tpuserve_loadtests.requests.wires import predict_exchange
from tpuserve_loadtests.requests.workload import Line, encode_lines
from tpuserve_loadtests.traffic.target import Runs, Target

if TYPE_CHECKING:
    from tpuserve_loadtests.traffic.engine import Engine
    from tpuserve_loadtests.traffic.workers import Workers

PROBE_TIMEOUT_S: Final = 10.0
Own: TypeAlias = Mapping[str, Any] | Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]
# Requests by the role that they need.
_ROLES: Final = {"read": "requests for metadata", "predict": "predictions", "control": "reloads of the configuration"}


@dataclass(frozen=True, slots=True)
class Requests:
    """The requested inputs and their source, and the access to the server.

    `lengths` gives the lengths of free dimensions by input. `own` are arrays by input name, or an iterable of values by
    input name, or a function that returns one.
    """

    options: RequestOptions
    access: Access
    rows: Distribution | None = None
    lengths: Mapping[str, Distribution] = field(default_factory=dict)
    recording: Recording | None = None
    own: Own | None = None

    @classmethod
    def of(cls, options: RequestOptions, access: Access) -> Self:
        """Read the options. Raises usage errors."""
        golden, files = options.golden.path, (options.input_file, options.prompts)
        rows = None if options.rows is None else _distribution(options.rows, "--rows")
        lengths = dict(_length(text) for text in options.lengths)
        if lengths and options.input_file:
            raise click.UsageError("--length applies only to random inputs. Omit --length or --input.")
        if all(files):
            raise click.UsageError("--input and --prompts exclude each other. Set one of them.")
        if golden and (lengths or any(files)):
            raise click.UsageError("The file of --golden contains the inputs. Omit --input, --prompts and --length.")
        if golden and golden.is_dir() and rows:
            raise click.UsageError("The version directory of --golden contains complete requests. Omit --rows.")
        recording = None
        if options.recorded:
            if rows or lengths or any(files) or golden:
                raise click.UsageError(
                    "--recorded contains complete requests. Omit --rows, --length, --input, --prompts and a file of "
                    "--golden."
                )
            with refused(BadRecording):
                recording = Recording.read(options.recorded)
        return cls(options, access, rows, lengths, recording)

    def recording_for(self, model: str) -> Recording | None:
        """Return the recorded requests for a model. Raise a usage error if there are none."""
        if self.recording is None:
            return None
        with refused(BadRecording):
            of_model = self.recording.of_model(self.options.recorded_model or model)
            return of_model.of_signature(self.options.signature_name or DEFAULT_SIGNATURE_NAME, DEFAULT_SIGNATURE_NAME)


def find_lines(
    spec: ModelSpec,
    addresses: dict[Protocol, str],
    requests: Requests,
    names: Sequence[str],
    max_bytes: int,
    *,
    replayed: bool = False,
) -> tuple[Line, ...]:
    """Return a line of each name and address, with at most `max_bytes` of requests in total.

    Fetches the model's metadata from every address. On failure, exits with a message. With `replayed`, the lines share
    the recorded requests in turn, to send them at their recorded times. Otherwise, each line has all requests.
    """
    signature = fetch_signature(spec, requests.options.signature_name, addresses, requests.access)
    protocols = tuple(addresses)
    try:
        if not replayed:
            return encode_lines(names, spec, signature, protocols, _made(requests, spec, signature), max_bytes)
        made = list(_made(requests, spec, signature))
        return tuple(
            line
            for turn, (name, protocol) in enumerate(zip(names, protocols, strict=True))
            for line in encode_lines(
                [name], spec, signature, [protocol], made[turn :: len(names)], max_bytes // len(names)
            )
        )
    except (BadInput, errors.InvalidArgument) as error:
        raise click.UsageError(f"{spec}: {error}") from None


def _arrays(requests: Requests, signature: Signature) -> tuple[Mapping[str, Array] | None, Mapping[str, Array] | None]:
    """Return the inputs and outputs that files contain. Raises BadInput."""
    options = requests.options
    if options.golden.path is not None:
        golden = GoldenRows.read(options.golden.path, signature)
        return golden.inputs, golden.outputs
    if isinstance(requests.own, Mapping):
        return fitted(requests.own, signature), None
    if options.input_file is not None:
        return read_inputs(options.input_file, signature), None
    if signature in openai.SIGNATURES.values():
        return openai.prompts(requests.lengths, options.prompts), None
    if options.prompts is not None:
        raise BadInput("--prompts needs a language model at an address with openai+")
    return None, None


def _read_golden(version: Path, signature: Signature) -> Recording:
    try:
        recording = read_golden_version(version).of_signature(signature.name, DEFAULT_SIGNATURE_NAME)
    except BadRecording as error:
        raise click.UsageError(f"--golden: {error}") from None
    for note in recording.notes:
        click.echo(f"Note: {note}", err=True)
    return recording


def _made(requests: Requests, spec: ModelSpec, signature: Signature) -> Iterator[Request]:
    recording = requests.recording_for(spec.name)
    golden = requests.options.golden.path
    if recording is None and golden is not None and golden.is_dir():
        recording = _read_golden(golden, signature)
    if recording is not None:
        return recorded_requests(recording, signature)
    own = requests.own
    if own is not None and not isinstance(own, Mapping):
        return own_requests(signature, own() if callable(own) else own)
    inputs, outputs = _arrays(requests, signature)
    lengths = requests.lengths if inputs is None else {}
    return array_requests(signature, rows=requests.rows, lengths=lengths, inputs=inputs, outputs=outputs)


@contextmanager
def generating(target: Target, generators: GeneratorOptions) -> Iterator[Runs]:
    """Start the processes that run loads against the target.

    The first Ctrl-C ends the current load and keeps its measurements. The second ends the wait for its last responses.
    Further ones have no effect, so that the report is complete.
    """
    # Locust patches the process that imports it, as these modules do.
    from tpuserve_loadtests.traffic.ctrl_c import ctrl_c
    from tpuserve_loadtests.traffic.workers import CannotListen, WorkersFailed

    generators.check()
    try:
        with refused(CannotListen, hint="--listen"):
            runs = _started(target, generators)
        with ctrl_c(runs.interrupted, runs.hurried), runs:
            yield runs
    except WorkersFailed as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_GENERATOR)


def _started(target: Target, generators: GeneratorOptions) -> "Engine | Workers":
    from tpuserve_loadtests.traffic.engine import Engine
    from tpuserve_loadtests.traffic.workers import Crew, Workers

    if generators.processes == 1 and not generators.remote:
        return Engine(target)
    local = 0 if generators.remote and generators.processes == 1 else generators.processes
    host, _, port = generators.listen.rpartition(":")
    crew = Crew(local, generators.remote, host, int(port)) if generators.remote else Crew(local)
    if generators.remote:
        click.echo(
            f"Waiting for remote workers ({generators.remote}): `tpuserve loadtest worker HOST:{port}`", err=True
        )
        if target.access.api_key is not None and not target.access.allow_plaintext_key:
            raise click.UsageError(
                "--remote sends the API key to the workers in plaintext. If you trust the network, set "
                "--allow-plaintext-key."
            )
        if target.access.has_secrets:
            click.echo(f"Note: The workers receive the API key and the values of {HEADER} in plaintext", err=True)
    return Workers(target, crew)


def find_spec(model: str, version: int | None, label: str | None) -> ModelSpec:
    """Return the model's spec. Raise a usage error for a version together with a label."""
    with refused(errors.InvalidArgument):
        return ModelSpec(model, version, label)


def _distribution(text: str, option: str) -> Distribution:
    with refused(ValueError, hint=option):
        return Distribution.parse(text)


def _length(text: str) -> tuple[str, Distribution]:
    name, _, distribution = text.rpartition("=")
    return name, _distribution(distribution, "--length")


def fetch_signature(spec: ModelSpec, name: str | None, addresses: dict[Protocol, str], access: Access) -> Signature:
    """Fetch the model's signature from every address, and return one. On failure, exit with a message."""
    for protocol, address in addresses.items():
        shown = shown_address(protocol, address)
        if is_oip(protocol) and name not in (None, DEFAULT_SIGNATURE_NAME):
            raise click.UsageError(
                f"{shown}: The Open Inference Protocol describes no signatures. Omit the signature {name!r}, or set "
                "an address without oip+."
            )
        try:
            if protocol == "openai":
                signature = _openai_signature(spec, name or DEFAULT_SIGNATURE_NAME, address, access)
                continue
            with access.client(address, PROBE_TIMEOUT_S) as client:
                signature = client.metadata(spec.name, version=spec.version, label=spec.label).signature(name)
        except (errors.Unavailable, errors.DeadlineExceeded) as error:
            end_unreachable(shown, access, error.message)
        except errors.NotFound as error:
            raise click.UsageError(f"{shown} does not serve {spec}: {error.message}") from None
        except errors.TpuserveError as error:
            raise click.UsageError(refusal(shown, error, "read")) from None
    return signature


def _openai_signature(spec: ModelSpec, name: str, address: str, access: Access) -> Signature:
    """Return the signature of a kind of completions, if the server lists the model. Raises TpuserveError."""
    if name not in openai.SIGNATURES:
        raise errors.InvalidArgument(f"the signatures of OpenAI's API are {', '.join(openai.SIGNATURES)}, not {name}")
    with closing(access.transport(address)) as transport:
        body = transport.send(openai.MODELS, PROBE_TIMEOUT_S).body
    try:
        names = [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, TypeError, KeyError):
        raise errors.Internal("the list of models (/v1/models) does not have the form of OpenAI's API") from None
    if spec.name not in names:
        raise errors.NotFound(f"it serves {', '.join(names) or 'no model'}")
    return openai.SIGNATURES[name]


def check_predictions(lines: Sequence[Line], addresses: Mapping[Protocol, str], access: Access) -> None:
    """Raise a usage error if the server refuses predictions with these credentials.

    Sends a request without inputs for each model, which no server runs. The load reports all other errors.
    """
    for protocol, spec in {(line.protocol, line.spec): None for line in lines if line.protocol != "openai"}:
        check_prediction(spec, protocol, addresses[protocol], access)


def check_prediction(spec: ModelSpec, protocol: Protocol, address: str, access: Access) -> None:
    """Check predictions of one model like `check_predictions`."""
    exchange = predict_exchange(protocol, spec, {}, DEFAULT_SIGNATURE_NAME)
    with closing(access.transport(address)) as transport, suppress(errors.TpuserveError):
        try:
            transport.send(exchange, PROBE_TIMEOUT_S)
        except (errors.PermissionDenied, errors.Unauthenticated) as error:
            raise click.UsageError(refusal(shown_address(protocol, address), error, "predict")) from None


def end_unreachable(address: str, access: Access, message: str) -> NoReturn:
    problem = handshake_problem(parse_address(client_address(address)), access.tls, address)
    click.echo(f"Error: Cannot reach {address}: {problem or message}", err=True)
    sys.exit(EXIT_UNREACHABLE)


def refusal(address: str, error: errors.TpuserveError, role: str) -> str:
    if not isinstance(error, errors.PermissionDenied | errors.Unauthenticated):
        return f"{address}: {error.message}"
    option, variable = (CONTROL_KEY_FILE, CONTROL_KEY_VARIABLE) if role == "control" else (KEY_FILE, KEY_VARIABLE)
    return (
        f"{address}: {error.message.removesuffix('.')}. The {_ROLES[role]} need credentials with the role {role}. Set "
        f"{option} or {variable}, {HEADER} or --cert."
    )
