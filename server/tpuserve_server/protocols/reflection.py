"""gRPC server reflection, v1 and v1alpha. Both have the same messages under different package names."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2 import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)

from tpuserve_formats.messages.oip import oip_pool
from tpuserve_formats.messages.pool import official_pool
from tpuserve_server.core.terms.errors import Code, InvalidArgument
from tpuserve_server.protocols.rpc import CallContext

_Found = TypeVar("_Found")


class ReflectionMethods:
    """ServerReflectionInfo over the official messages and all other messages that this process has loaded."""

    def __init__(self, service_names: Sequence[str]) -> None:
        """List `service_names`, the services that the server provides."""
        self._service_names = sorted(service_names)
        self._pools = (official_pool(), oip_pool(), descriptor_pool.Default(), _v1_pool())
        self._answers: dict[str, Callable[[ServerReflectionRequest], ServerReflectionResponse]] = {
            "file_by_filename": self._file_by_filename,
            "file_containing_symbol": self._file_containing_symbol,
            "file_containing_extension": self._file_containing_extension,
            "all_extension_numbers_of_type": self._all_extension_numbers_of_type,
            "list_services": self._list_services,
        }

    async def server_reflection_info(
        self, requests: AsyncIterator[bytes], context: CallContext
    ) -> AsyncIterator[bytes]:
        """Yield one response for each request. An unknown name gets an error response and does not fail the call."""
        async for body in requests:
            yield self._answer(body).SerializeToString()

    def _answer(self, body: bytes) -> ServerReflectionResponse:
        try:
            request = ServerReflectionRequest.FromString(body)
        except DecodeError:
            raise InvalidArgument("Malformed ServerReflectionRequest") from None
        answer = self._answers.get(request.WhichOneof("message_request"))
        try:
            response = answer(request) if answer else _error(Code.INVALID_ARGUMENT, "no request is set")
        except KeyError:
            response = _error(Code.NOT_FOUND, "not found")
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        return response

    def _file_by_filename(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        return _files(self._find(lambda pool: pool.FindFileByName(request.file_by_filename)))

    def _file_containing_symbol(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        return _files(self._find(lambda pool: pool.FindFileContainingSymbol(request.file_containing_symbol)))

    def _file_containing_extension(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        wanted = request.file_containing_extension

        def find(pool: descriptor_pool.DescriptorPool) -> FileDescriptor:
            message = pool.FindMessageTypeByName(wanted.containing_type)
            extension = pool.FindExtensionByNumber(message, wanted.extension_number)
            return pool.FindFileContainingSymbol(extension.full_name)

        return _files(self._find(find))

    def _all_extension_numbers_of_type(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        name = request.all_extension_numbers_of_type
        numbers = self._find(
            lambda pool: sorted(each.number for each in pool.FindAllExtensions(pool.FindMessageTypeByName(name)))
        )
        return ServerReflectionResponse(
            all_extension_numbers_response=ExtensionNumberResponse(base_type_name=name, extension_number=numbers)
        )

    def _list_services(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        services = [ServiceResponse(name=name) for name in self._service_names]
        return ServerReflectionResponse(list_services_response=ListServiceResponse(service=services))

    def _find(self, find: Callable[[descriptor_pool.DescriptorPool], _Found]) -> _Found:
        """Return the result from the first pool that knows the name. Raises KeyError if none does."""
        *others, last = self._pools
        for pool in others:
            with contextlib.suppress(KeyError):
                return find(pool)
        return find(last)


def _v1_pool() -> descriptor_pool.DescriptorPool:
    """Build v1's file, which grpcio-reflection does not ship, by renaming v1alpha's.

    A separate pool avoids conflicts with other copies of the file.
    """
    proto = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(proto)
    text = text_format.MessageToString(proto).replace("v1alpha", "v1")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(text_format.Parse(text, FileDescriptorProto()).SerializeToString())
    return pool


def _files(file: FileDescriptor) -> ServerReflectionResponse:
    """Return a response with the file and all its imports, each once."""
    found: dict[str, bytes] = {}
    waiting = [file]
    while waiting:
        current = waiting.pop()
        if current.name not in found:
            found[current.name] = current.serialized_pb
            waiting += current.dependencies
    return ServerReflectionResponse(
        file_descriptor_response=FileDescriptorResponse(file_descriptor_proto=list(found.values()))
    )


def _error(code: Code, message: str) -> ServerReflectionResponse:
    return ServerReflectionResponse(error_response=ErrorResponse(error_code=int(code), error_message=message))
