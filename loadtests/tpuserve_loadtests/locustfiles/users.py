"""Classes of Locust users that send requests to a model server.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

import click
from locust import User, events
from locust.user.task import LOCUST_STATE_WAITING

from tpuserve_client.client import Inputs
from tpuserve_client.model import Prediction
from tpuserve_loadtests.cli import targets
from tpuserve_loadtests.cli.access import find_access
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.options import AUTO, FILE, Golden, GoldenOptions, RequestOptions, ToleranceOptions
from tpuserve_loadtests.cli.requested_traffic import ModelTraffic, RequestedTraffic
from tpuserve_loadtests.locustfiles.client import PredictClient
from tpuserve_loadtests.locustfiles.options import addresses_of, parsed
from tpuserve_loadtests.locustfiles.session import Requested, Session
from tpuserve_loadtests.requests.arrays import INPUT_SUFFIXES, BadInput
from tpuserve_loadtests.requests.protocols import OIP, TITLES, Protocol, client_address, prefix_of

_Inputs = Mapping[str, Any]  # values that numpy converts to arrays, by input name


@dataclass(frozen=True, slots=True)
class Payloads:
    """The payloads of a class of users, which are encoded before the run and sent in turn.

    `source` is one of these:

    - None: random inputs
    - the path of a file of inputs (.npz, .npy or .json), or of recorded requests (every other suffix)
    - a mapping of arrays by input name, whose rows are divided into payloads
    - `Rows`, or another iterable of mappings of arrays by input name, or a function that returns one: one payload each,
      and at most 1,024 of them. A value without the model's first dimension is one row

    `rows` and `lengths` are those of `tpuserve loadtest run --rows --length`, such as "1..16". `recorded_model` selects
    the requests of another model in recorded requests.
    """

    source: str | Path | _Inputs | Iterable[_Inputs] | Callable[[], Iterable[_Inputs]] | None = None
    rows: str | int | None = None
    lengths: tuple[str, ...] = ()
    recorded_model: str | None = None

    def requests(self, signature_name: str | None, golden: GoldenOptions, values: Namespace) -> targets.Requests:
        """Return the requested inputs. Raises ValueError or a usage error."""
        path = FILE.convert(self.source, None, None) if isinstance(self.source, str | Path) else None
        is_recorded = path is not None and path.suffix not in INPUT_SUFFIXES
        run, _ = parsed(values)
        options = RequestOptions(
            rows=None if self.rows is None else str(self.rows),
            lengths=self.lengths,
            input_file=None if is_recorded else path,
            prompts=None,
            recorded=(path,) if path is not None and is_recorded else (),
            recorded_model=self.recorded_model,
            signature_name=signature_name,
            timeout=run.requests.timeout,
            connections=run.requests.connections,
            golden=golden,
        )
        requests = targets.Requests.of(options, find_access(run.server.access))
        own = None if isinstance(self.source, str | Path) else self.source
        if own is not None and (golden.path or self.lengths):
            raise BadInput("payloads of your own contain the inputs. Omit lengths and a path of golden responses.")
        return replace(requests, own=own)


class TpuserveUser(User):  # type: ignore[misc]  # Locust ships no annotations
    """A Locust user of a model server, as the base of own classes.

    `--host`, LOCUST_HOST, the host field of the web page or the attribute `host` selects the server. The scheme selects
    the protocol: `http://` and `https://` REST, `grpc://`, `grpcs://` and `HOST:PORT` gRPC, each after `oip+` the Open
    Inference Protocol. With a gRPC and a REST address and a comma between them, users take turns.

    Tasks, weights and `wait_time` are Locust's::

        class Visitor(TpuserveUser):
            wait_time = between(1, 3)

            @task
            def classify(self):
                prediction = self.client.predict("digits", {"image": image})

    With the attribute `model`, tasks can call `self.predict(inputs)`, and with `payloads` also `self.send_payload()`,
    which sends the next of the encoded payloads. A class without tasks sends one payload after another, by default
    random ones::

        class Digits(TpuserveUser):
            model = "digits"
            payloads = Payloads(rows="1..16")

    `version`, `label` and `signature_name` select a version and a signature of the model. `name` is the name of the
    payloads in the statistics, by default the model with its version or label. The values of a share of the responses
    to payloads are compared with golden responses. `golden` selects these as `tpuserve loadtest run --golden` does:
    "auto", "record", "off" or a path.

    Locust's command line gets options for TLS, keys, headers, timeouts, gates and reports. When Locust ends, it prints
    the table of `tpuserve loadtest run` for all requests of the run.
    """

    abstract = True
    is_ended = False
    # The protocols that the class sends, and the prefix of an address without one.
    protocols: ClassVar[tuple[Protocol, ...]] = get_args(Protocol)
    address_prefix: ClassVar[str] = ""

    model: ClassVar[str | None] = None
    version: ClassVar[int | None] = None
    label: ClassVar[str | None] = None
    signature_name: ClassVar[str | None] = None
    name: ClassVar[str | None] = None
    payloads: ClassVar[Payloads | None] = None
    golden: ClassVar[str | Path] = AUTO

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.model is not None and not cls.abstract and not cls.tasks:
            cls.tasks = [cls.send_payload]
            cls.payloads = cls.payloads or Payloads()

    @cached_property
    def number(self) -> int:
        """The number of this user, which no other user of the run has. It is a seed for the user's data."""
        return SESSION.next_number(self.environment.runner)

    @cached_property
    def client(self) -> PredictClient:
        """The client of this user, from its first request. All users of a class in a process share the connections."""
        return SESSION.client(self)

    def send_payload(self, name: str | None = None) -> None:
        """Send the next payload of the class, as `PredictClient.send_payload` does.

        The class needs the attributes `model` and `payloads`.
        """
        self.client.send_payload(name)

    def predict(self, inputs: Inputs, **options: Any) -> Prediction:  # noqa: ANN401  those of PredictClient.predict
        """Run the class's model on `inputs`, as `PredictClient.predict` does with its other arguments.

        Raises RequestFailed, and TypeError for a class without the attribute `model`.
        """
        if self.model is None:
            raise TypeError(f"{type(self).__name__} has no attribute model. Set it, or call self.client.predict.")
        chosen = {"version": self.version, "label": self.label, "signature_name": self.signature_name}
        return self.client.predict(self.model, inputs, **{**chosen, **options})

    def stop(self, force: bool = False) -> bool:
        """Stop as Locust's users do."""
        # Locust's exception for a waiting user arrives later, when the user may have begun its next task.
        self.is_ended = force or self._state == LOCUST_STATE_WAITING
        return bool(super().stop(force))

    @classmethod
    def requested(cls, host: str, values: Namespace) -> Requested:
        """Return the addresses and the payloads of the class, from Locust's host and parsed options.

        Raises ValueError or a usage error.
        """
        texts = [text if prefix_of(text) else cls.address_prefix + text for text in map(str.strip, host.split(","))]
        found = {
            protocol: client_address(address)
            for protocol, address in addresses_of(",".join(texts) if host.strip() else "").items()
            if protocol in cls.protocols
        }
        if not found:
            titles = " or ".join(TITLES[protocol] for protocol in cls.protocols)
            raise click.UsageError(f"{cls.__name__} sends {titles}; received --host {host}.")
        if cls.model is None or cls.payloads is None:
            return Requested(found, ())
        golden = GoldenOptions(Golden().convert(cls.golden, None, None), None, ToleranceOptions(None, None))
        with refused(BadInput):
            requests = cls.payloads.requests(cls.signature_name, golden, values)
        spec = targets.find_spec(cls.model, cls.version, cls.label)
        name, protocols = cls.name or str(spec), tuple(found)
        lines = tuple(f"{name} {TITLES[protocol]}" for protocol in protocols) if len(found) > 1 else (name,)
        part = ModelTraffic(name, spec, requests, protocols, 1.0, lines)
        return Requested(found, (), RequestedTraffic("", found, requests, (part,)).echo_notes())


class GrpcPredictUser(TpuserveUser):
    """A TpuserveUser that sends gRPC alone. If the host has two addresses, its users use the gRPC one."""

    abstract = True
    protocols = ("grpc",)


class RestPredictUser(TpuserveUser):
    """A TpuserveUser that sends REST alone. If the host has two addresses, its users use the REST one."""

    abstract = True
    protocols = ("rest",)


class OipUser(TpuserveUser):
    """A TpuserveUser of the Open Inference Protocol, for tpuserve, Triton and KServe.

    The host needs no `oip+`: `http://HOST:8000` or `grpc://HOST:8001`.
    """

    abstract = True
    protocols = ("oip_grpc", "oip_http", "oip_json")
    address_prefix = OIP


# Locust's events belong to the process, and so does the session.
SESSION: Final = Session(TpuserveUser)
SESSION.listen(events)
