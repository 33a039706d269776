"""Recording of golden answers: each request once and alone, before a load could mix up responses.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
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
    """Error for a request that failed, or whose response could not be decoded, without any other load."""


def record_golden(target: Target, signatures: Mapping[str, Signature], on_response: Callable[[], None]) -> Target:
    """Return the target with golden answers for its requests. `signatures` are by line name.

    Calls `on_response` after each request. Blocks. Raises NotRecorded.
    """
    with closing(Connections(target.addresses, target.access, 1, target.timeout_s)) as connections:
        lines = [
            replace(line, golden=_answers(connections.sender(line), signatures[line.name], on_response))
            for line in target.workload.lines
        ]
    return replace(target, workload=replace(target.workload, lines=tuple(lines)))


def _answers(sender: Sender, signature: Signature, on_response: Callable[[], None]) -> tuple[bytes, ...]:
    answers = []
    line = sender.line
    for number in range(len(line.exchanges)):
        try:
            answers.append(_golden(line, signature, sender.send(number)))
        except Exception as error:  # a request that fails alone also fails under load
            raise NotRecorded(
                f"{line.name}, request {number + 1} of {len(line.exchanges)}: {failure_message(error)}"
            ) from None
        on_response()
    return tuple(answers)


def _golden(line: Line, signature: Signature, answer: bytes) -> bytes:
    """Return gRPC responses unchanged, so that checks recognize an identical response without decoding."""
    call = PredictCall(line.spec, {}, line.signature_name)
    if line.protocol == "grpc":
        GrpcWire().read_prediction(Reply(answer), call, None)
        return answer
    return encode_golden(RestWire().read_prediction(Reply(answer), call, signature).outputs)
