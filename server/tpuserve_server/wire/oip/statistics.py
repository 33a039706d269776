"""Statistics of versions as Triton's ModelStatistics, over gRPC and in JSON."""

from collections.abc import Mapping

from tpuserve_formats.messages.oip import (
    InferBatchStatistics,
    InferStatistics,
    ModelStatistics,
    ModelStatisticsResponse,
    StatisticDuration,
)
from tpuserve_server.core.terms.statistics import Total, VersionStatistics
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.wire.oip.message_json import message_to_json


def encode_statistics(statistics: Mapping[ServableId, VersionStatistics]) -> bytes:
    """Serialize a ModelStatisticsResponse, in the order of the mapping."""
    return _message(statistics).SerializeToString()


def statistics_to_json(statistics: Mapping[ServableId, VersionStatistics]) -> dict[str, object]:
    """Build the REST response."""
    return message_to_json(_message(statistics))


def _message(statistics: Mapping[ServableId, VersionStatistics]) -> ModelStatisticsResponse:
    return ModelStatisticsResponse(model_stats=[_version(servable, each) for servable, each in statistics.items()])


def _version(servable: ServableId, each: VersionStatistics) -> ModelStatistics:
    # Joining the rows of a batch is a part of its run. Splitting the outputs is not measured.
    unmeasured = Total(each.compute.count)
    return ModelStatistics(
        name=servable.name,
        version=str(servable.version),
        last_inference=each.last_inference_ms,
        inference_count=each.rows,
        execution_count=each.batches,
        inference_stats=InferStatistics(
            success=_duration(each.success),
            fail=_duration(each.fail),
            queue=_duration(each.queue),
            compute_input=_duration(unmeasured),
            compute_infer=_duration(each.compute),
            compute_output=_duration(unmeasured),
            cache_hit=_duration(each.cache_hit),
            cache_miss=_duration(each.cache_miss),
        ),
        batch_stats=[_batches(rows, total) for rows, total in each.sizes],
    )


def _batches(rows: int, total: Total) -> InferBatchStatistics:
    unmeasured = Total(total.count)
    return InferBatchStatistics(
        batch_size=rows,
        compute_input=_duration(unmeasured),
        compute_infer=_duration(total),
        compute_output=_duration(unmeasured),
    )


def _duration(total: Total) -> StatisticDuration:
    return StatisticDuration(count=total.count, ns=total.ns)
