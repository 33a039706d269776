"""Parameter types of the command line that click does not have."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import click

from tpuserve_exporter.deployment.machines import VertexMachine
from tpuserve_exporter.deployment.names import Image
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.store_uri import OutBase, StoreUri, parse_gs_uri, parse_out_base
from tpuserve_exporter.options.tpu import DeviceMesh, ShardRule, TpuTopology, parse_topologies
from tpuserve_formats.errors import FormatError
from tpuserve_formats.price import Price

_T = TypeVar("_T")


class BatchSizes(click.ParamType[tuple[int, ...]]):
    """A list of positive numbers of rows, such as `1,2,8`. The result is sorted and has no duplicates."""

    name = "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None  # noqa: ANN401 - click's signature
    ) -> tuple[int, ...]:  # fmt: skip
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not a list of positive numbers", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


class Version(click.ParamType[int | Literal["next", "timestamp"]]):
    """A positive number, `next` or `timestamp`."""

    name = "N|timestamp|next"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None  # noqa: ANN401 - click's signature
    ) -> int | Literal["next", "timestamp"]:  # fmt: skip
        if value in ("next", "timestamp"):
            return value  # type: ignore[no-any-return]  # just compared
        if not str(value).isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither a positive number nor 'timestamp' nor 'next'", param, ctx)
        return int(value)


class _Parsed(click.ParamType[_T]):
    """A type whose values `parse` makes from text. Values of type `made` pass unchanged.

    `parse` raises OptionConflict or FormatError.
    """

    def __init__(self, name: str, made: type, parse: Callable[[str], _T]) -> None:
        self.name = name
        self._made = made
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None  # noqa: ANN401 - click's signature
    ) -> _T:  # fmt: skip
        if isinstance(value, self._made):
            return cast("_T", value)
        try:
            return self._parse(str(value))
        except (OptionConflict, FormatError) as error:
            self.fail(str(error), param, ctx)


# A directory, `gs://BUCKET/PATH` or `s3://BUCKET/PATH`.
OUT_BASE: click.ParamType[OutBase] = _Parsed("OUT_BASE", StoreUri, parse_out_base)
# `v5e:1x1,v6e-8`: TPUs by topology or machine type.
TOPOLOGIES: click.ParamType[tuple[TpuTopology, ...]] = _Parsed("TPU,TPU,...", tuple, parse_topologies)
# `v5e:2x2`: one TPU.
TOPOLOGY: click.ParamType[TpuTopology] = _Parsed("TPU", TpuTopology, TpuTopology.parse)
# `data=2,model=4`.
MESH: click.ParamType[DeviceMesh] = _Parsed("data=N,model=M", DeviceMesh, DeviceMesh.parse)
# `embedding/.*=model,-`.
SHARD: click.ParamType[ShardRule] = _Parsed("REGEX=AXES", ShardRule, ShardRule.parse)
# `registry.example.com/tpuserve-server:0.1.0-tpu`.
IMAGE: click.ParamType[Image] = _Parsed("IMAGE", Image, Image.parse)
# `gs://bucket/models/digits/3`.
GS_URI: click.ParamType[StoreUri] = _Parsed("URI", StoreUri, parse_gs_uri)
# `n1-standard-4`.
MACHINE_TYPE: click.ParamType[VertexMachine] = _Parsed("TYPE", VertexMachine, VertexMachine.parse)
# `1.20 EUR`.
PRICE: click.ParamType[Price] = _Parsed("PRICE", Price, Price.parse)
