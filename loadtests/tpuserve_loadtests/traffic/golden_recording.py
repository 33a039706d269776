"""Recording of golden answers: each request once and alone, before a load could mix up responses.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

from tpuserve_client.exchange import Reply
from tpuserve_client.model import Signature
from tpuserve_loadtests.requests.wires import WIRES, encode_golden, predict_call
from tpuserve_loadtests.requests.workload import Line
from tpuserve_loadtests.traffic.engine import Target
from tpuserve_loadtests.traffic.senders import Connections, Sender, failure_message


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


def _golden(line: Line, signature: Signature, reply: Reply) -> bytes:
    """Return PredictResponses unchanged, so that checks recognize an identical response without decoding."""
    call = predict_call(line.protocol, line.spec, {}, line.signature_name)
    prediction = WIRES[line.protocol].read_prediction(reply, call, signature)
    return reply.body if line.protocol == "grpc" else encode_golden(prediction.outputs)
