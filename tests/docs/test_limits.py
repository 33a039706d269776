"""Tests that docs/reference/limits.md has the values of the code and names existing flags."""

import re

import pytest

from tests.deploy.dockerfile import ROOT
from tpuserve_server.core.models import configuration_rules, local_storage, manager
from tpuserve_server.core.models.ends import MOST_ENDS, MOST_FORM_ENDS
from tpuserve_server.core.system.form_records import MOST_KNOWN
from tpuserve_server.core.terms import errors
from tpuserve_server.executors.tensorflow import executor
from tpuserve_server.hosts import http_server, limits
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.protocols.http import content
from tpuserve_server.protocols.oip import shared_memory
from tpuserve_server.protocols.oip_grpc import inference
from tpuserve_server.startup.settings import flags
from tpuserve_server.wire import proto_scan
from tpuserve_server.wire.json import body as json_body
from tpuserve_server.wire.json import layout
from tpuserve_server.wire.oip import infer_json, tensor_json

PAGE = (ROOT / "docs/reference/limits.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.splitlines()
    if line.startswith("| ")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
DEFAULTS = {f"--{flag.name}": flag.default for flag in flags()}
# Flags whose default is a number, or None if another setting gives it.
NUMBERS = {name: default for name, default in DEFAULTS.items() if isinstance(default, int | float)}


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        ("chunks of a REST body", f"{content._MAX_CHUNKS:,}"),
        ("headers of one request, with its path", f"{limits.MAX_HEADER_BYTES >> 10} KiB"),
        ("headers that the server reads", f"{http_server._MAX_HEADER_BYTES >> 10} KiB"),
        ("headers of one request", f"{limits.MAX_HEADERS_COUNT}"),
        ("nesting of JSON", f"{json_body.MAX_DEPTH} levels"),
        ("members of an object, in a large JSON body", f"{layout._MAX_MEMBERS:,}"),
        (
            "name of a model, signature, input or output, in a protobuf message over 256 KiB",
            f"{proto_scan.MAX_NAME_BYTES >> 10} KiB",
        ),
        ("name of a member, or value of `signature_name`, in a large JSON body", f"{layout._MAX_NAME_BYTES >> 10} KiB"),
        (
            "inputs, outputs or dimensions of a tensor, in a JSON body of the Open Inference Protocol",
            f"{tensor_json.MAX_TENSORS:,}",
        ),
        ("keys of an object, in a JSON body of the Open Inference Protocol", f"{infer_json._MOST_MEMBERS:,}"),
        (
            "JSON without the data, in a large JSON body of the Open Inference Protocol",
            f"{json_body.MEDIUM_BYTES >> 20} MiB",
        ),
        ("name of a model, signature, input or output in a request", f"{errors._MOST_SHOWN:,} characters"),
        (
            "client connections",
            f"{HostOptions().max_connections:,}, or half of the open files (`ulimit -n`) above "
            f"{limits._RESERVED_FILES} if that is less",
        ),
        ("calls at the same time on one gRPC connection", f"{limits.MAX_STREAMS_PER_CONNECTION}"),
        ("wait for a client that reads nothing of its response", f"{limits.DRAIN_UNREAD_S:g} s"),
        ("requests of one stream (`ModelStreamInfer`) that wait", f"{inference.MAX_PENDING}"),
        ("regions of shared memory", f"{shared_memory._MAX_REGIONS}"),
        ("steps of an ensemble", f"{configuration_rules._MAX_STEPS}"),
        ("ensembles within ensembles", f"{configuration_rules._MAX_LEVELS} levels"),
        ("loads of one model that hang", f"{manager._MAX_HUNG}"),
        ("files and directories of a version", f"{local_storage.MAX_ENTRIES:,}"),
        ("nested directories of a version", f"{local_storage.MAX_DEPTH}"),
        ("calls within calls of a TensorFlow graph", f"{executor._MAX_DEPTH}"),
        ("nodes that function calls add to a graph", f"{executor._MAX_ADDED_NODES:,}"),
        ("ends of the server's process by one model", f"{MOST_ENDS} in 1 hour"),
        ("ends of the server's process by new input shapes of one model", f"{MOST_FORM_ENDS} in 1 hour"),
        ("input shapes of one version that the next process knows", f"{MOST_KNOWN}"),
    ],
)
def test_limit_has_the_value_of_the_code(limit: str, shown: str) -> None:
    assert ROWS[limit][0] == shown


def test_every_flag_exists() -> None:
    named = set(re.findall(r"`(--\w+)[=`]", PAGE))
    assert len(named) > 10
    assert named <= DEFAULTS.keys()


def test_plain_defaults_are_those_of_the_flags() -> None:
    """Compare numbers, also with `s` for flags in seconds. Other defaults have a unit that this test cannot derive."""
    compared = 0
    for cells in ROWS.values():
        if len(cells) == 3 and (name := cells[1].strip("`")) in NUMBERS and re.fullmatch(r"\d+( s)?", cells[0]):
            factor = 1000 if name.endswith("_ms") else 1
            assert float(cells[0].split()[0]) * factor == NUMBERS[name], name
            compared += 1
    assert compared >= 6
