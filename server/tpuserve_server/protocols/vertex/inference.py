"""Inference requests of the Open Inference Protocol on Vertex AI's predict route.

Triton's route answers them too (server, vertex_ai_server.cc), so clients of both servers send the same raw predictions.
"""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.protocols.exchange import HttpCall
from tpuserve_server.protocols.http.body import LARGE_BODY_BYTES
from tpuserve_server.protocols.http.response import HttpResponse
from tpuserve_server.protocols.oip_rest.header_length import read_json_length, read_media_type_length
from tpuserve_server.protocols.oip_rest.route import Action
from tpuserve_server.protocols.oip_rest.v2 import V2
from tpuserve_server.wire.oip.infer_json import is_infer_json
from tpuserve_server.wire.oip.tensor_json import TakesLong

if TYPE_CHECKING:
    from starlette.types import Scope


class VertexInference:
    """Recognizes these requests by the length of their JSON or by their tensors, and answers them."""

    def __init__(self, protocol: V2) -> None:
        """Answer with `protocol`."""
        self._protocol = protocol

    async def accepts(self, scope: "Scope", body: bytes) -> bool:
        """Return whether a header names the length of the JSON, or the body has tensors of the protocol.

        Raises:
            InvalidArgument: the length is not a number from 0 to the length of the body.
        """
        if _json_bytes(scope, body) is not None:
            return True
        try:
            if len(body) > LARGE_BODY_BYTES:
                raise TakesLong
            return is_infer_json(body, quickly=True)
        except TakesLong:
            return await asyncio.to_thread(is_infer_json, body, self._protocol.decoded)

    def infer(self, target: ModelSpec, call: HttpCall, body: bytes) -> Awaitable[HttpResponse]:
        """Answer the request in the protocol's form."""
        call.measured.method = Action.INFER.value
        return self._protocol.infer(target, call, body, _json_bytes(call.scope, body))


def _json_bytes(scope: "Scope", body: bytes) -> int | None:
    length = read_media_type_length(scope, len(body))
    return read_json_length(scope, len(body)) if length is None else length
