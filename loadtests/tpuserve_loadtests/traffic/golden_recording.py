"""Golden answers by asking: each request once, alone, before there is a load that could mix answers up.

Importing this needs a process that was handed to gevent: see gevent_setup.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

from tpuserve_client.exchange import PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import Signature
from tpuserve_client.rest_wire import RestWire
from tpuserve_loadtests.golden.golden_answers import encode_golden
from tpuserve_loadtests.traffic.engine import Target
from tpuserve_loadtests.traffic.senders import Connections, Sender, failure_message
from tpuserve_loadtests.workload import Line


class NotRecorded(RuntimeError):
    """A request that was not answered, or whose answer cannot be read, though nothing else was asked."""


def record_golden(target: Target, signatures: Mapping[str, Signature], told: Callable[[], None]) -> Target:
    """The target with the answers to its requests, of each of which `told` is called; `signatures` by name of the line.

    Blocks. Raises NotRecorded.
    """
    with closing(Connections(target.addresses, target.access, 1, target.timeout_s)) as connections:
        lines = [
            replace(line, golden=_answers(connections.sender(line), signatures[line.name], told))
            for line in target.workload.lines
        ]
    return replace(target, workload=replace(target.workload, lines=tuple(lines)))


def _answers(sender: Sender, signature: Signature, told: Callable[[], None]) -> tuple[bytes, ...]:
    answers = []
    line = sender.line
    for number in range(len(line.exchanges)):
        try:
            answers.append(_golden(line, signature, sender.send(number)))
        except Exception as error:  # whatever went wrong with a request that was alone goes wrong under load, too
            raise NotRecorded(
                f"{line.name}, request {number + 1} of {len(line.exchanges)}: {failure_message(error)}"
            ) from None
        told()
    return tuple(answers)


def _golden(line: Line, signature: Signature, answer: bytes) -> bytes:
    """gRPC's as it came: the same answer under load is then known without being read."""
    call = PredictCall(line.spec, {}, line.signature_name)
    if line.protocol == "grpc":
        GrpcWire().read_prediction(Reply(answer), call, None)
        return answer
    return encode_golden(RestWire().read_prediction(Reply(answer), call, signature).outputs)
