"""What options of the command line are read as, where click has no type for it."""

from typing import Any, Literal

import click

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.device_mesh import DeviceMesh, ShardRule
from tpuserve_exporter.options.store_uri import OutBase, parse_out_base
from tpuserve_exporter.options.tpu_topology import TpuTopology, parse_topologies


class BatchSizes(click.ParamType[tuple[int, ...]]):
    """`1,2,8`: ascending numbers of rows."""

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


class OutBasePath(click.ParamType[OutBase]):
    """A directory, or `gs://BUCKET/PATH`, `s3://BUCKET/PATH`."""

    name = "OUT_BASE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None  # noqa: ANN401 - click's signature
    ) -> OutBase:  # fmt: skip
        try:
            return parse_out_base(str(value))
        except OptionConflict as error:
            self.fail(str(error), param, ctx)


class Topologies(click.ParamType[tuple[TpuTopology, ...]]):
    """`v5e:1x1,v6e-8`: TPUs by their topology or their machine."""

    name = "TPU,TPU,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None  # noqa: ANN401 - click's signature
    ) -> tuple[TpuTopology, ...]:  # fmt: skip
        if isinstance(value, tuple):
            return value
        try:
            return parse_topologies(str(value))
        except OptionConflict as error:
            self.fail(str(error), param, ctx)


class Mesh(click.ParamType[DeviceMesh]):
    """`data=2,model=4`."""

    name = "data=N,model=M"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None  # noqa: ANN401 - click's signature
    ) -> DeviceMesh:  # fmt: skip
        try:
            return value if isinstance(value, DeviceMesh) else DeviceMesh.parse(str(value))
        except OptionConflict as error:
            self.fail(str(error), param, ctx)


class Shard(click.ParamType[ShardRule]):
    """`embedding/.*=model,-`."""

    name = "REGEX=AXES"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None  # noqa: ANN401 - click's signature
    ) -> ShardRule:  # fmt: skip
        try:
            return value if isinstance(value, ShardRule) else ShardRule.parse(str(value))
        except OptionConflict as error:
            self.fail(str(error), param, ctx)
