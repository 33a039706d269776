"""The cases of every alert, in the order of rules/alerts.yaml."""

from tests.deploy.observability.alert_case import AlertCase

_SERVER = {"job": "tpuserve", "instance": "a:8501"}
_MODEL = {"job": "tpuserve", "model_name": "m"}
_VERSION = {**_SERVER, "model_name": "m", "version": "1"}


def _series(name: str, /, **labels: str) -> str:
    matchers = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{matchers}}}"


def _requests(code: str) -> str:
    return _series("tpuserve_requests_total", **_VERSION, method="Predict", protocol="grpc", code=code)


def _failed(code: str, fault: str = "server", version: str = "1") -> str:
    labels = {**_SERVER, "model_name": "m", "version": version, "method": "Predict"}
    return _series("tpuserve_failed_requests_total", **labels, code=code, fault=fault)


def _latencies(name: str, fast: int, slow: int, minutes: int = 30, **labels: str) -> dict[str, str]:
    """Return a histogram with `fast` values below 0.1 s and `slow` values from 1 s to 2 s a minute."""
    counts = {"0.1": fast, "1": fast, "2": fast + slow, "+Inf": fast + slow}
    return {_series(name, **_VERSION, **labels, le=le): f"0+{count}x{minutes}" for le, count in counts.items()}


_LATENCY = "tpuserve_request_latency_seconds_bucket"
_WAIT = "tpuserve_queue_wait_seconds_bucket"
_EXPIRY = "tpuserve_certificate_expiry_timestamp_seconds"
_FAILED_LOADS = _series("tpuserve_version_loads_total", **_SERVER, model_name="m", outcome="failed")
_HUNG_RUNS = _series("tpuserve_hung_runs_total", **_VERSION)
_AVAILABLE = _series("tpuserve_model_available", **_SERVER, model_name="m")
_UNWARMED = _series("tpuserve_unwarmed_runs_total", **_VERSION, signature="serving_default")

CASES = [
    AlertCase(
        "TpuserveDown",
        "3m",
        fires={_series("up", **_SERVER): "0x10"},
        quiet={_series("up", **_SERVER): "1 0 1x10"},
        labels=_SERVER,
        description="a:8501 has not answered for 2 minutes.",
    ),
    AlertCase(
        "TpuserveAbsent",
        "6m",
        fires={_series("up", job="other", instance="b"): "1x10"},
        quiet={_series("up", **_SERVER): "0x10"},
        labels={"job": "tpuserve"},
        description="The job tpuserve has had no target for 5 minutes.",
    ),
    AlertCase(
        "TpuserveNotReady",
        "3m",
        fires={_series("tpuserve_server_state", **_SERVER, state="not_ready"): "1x10"},
        quiet={
            _series("tpuserve_server_state", **_SERVER, state="not_ready"): "0x10",
            _series("tpuserve_server_state", **_SERVER, state="draining"): "1x10",
        },
        labels={**_SERVER, "state": "not_ready"},
        description="a:8501 has not been ready for 2 minutes. Its /readyz has the reason.",
    ),
    AlertCase(
        "TpuserveRestarts",
        "10m",
        fires={_series("process_start_time_seconds", **_SERVER): "10 20 30 40x10"},
        quiet={_series("process_start_time_seconds", **_SERVER): "10 20x10"},
        labels=_SERVER,
        description="a:8501 has restarted 3 times in 30 minutes.",
    ),
    AlertCase(
        "TpuserveAvailabilityBurnsFast",
        "2h",
        fires={
            _requests("OK"): "0+95x120",
            _requests("INTERNAL"): "0+5x120",
            _failed("INTERNAL"): "0+5x120",
        },
        # Wrong requests, and timeouts that no idle server could meet.
        quiet={
            _requests("OK"): "0+90x120",
            _requests("INVALID_ARGUMENT"): "0+5x120",
            _failed("INVALID_ARGUMENT", "client"): "0+5x120",
            _requests("DEADLINE_EXCEEDED"): "0+5x120",
            _failed("DEADLINE_EXCEEDED", "client"): "0+5x120",
            _series("tpuserve_refused_requests_total", **_SERVER, reason="impossible_deadline"): "0+5x120",
        },
        labels={"job": "tpuserve"},
        description="5% of the predictions of tpuserve fail.",
    ),
    AlertCase(
        "TpuserveAvailabilityBurnsSlowly",
        "8h",
        fires={
            _requests("OK"): "0+998x480",
            _series("tpuserve_refused_requests_total", **_SERVER, reason="too_late"): "0+2x480",
        },
        quiet={
            _requests("OK"): "0+9995x480",
            _requests("UNAVAILABLE"): "0+5x480",
            _failed("UNAVAILABLE"): "0+5x480",
        },
        labels={"job": "tpuserve"},
        description="0.2% of the predictions of tpuserve failed in 3 days.",
    ),
    AlertCase(
        "TpuserveModelFails",
        "15m",
        # A model that is gone: its requests have no version.
        fires={
            _requests("OK"): "0+80x20",
            _requests("NOT_FOUND"): "0+20x20",
            _failed("NOT_FOUND", version=""): "0+20x20",
        },
        quiet={
            _requests("OK"): "0+95x20",
            _requests("NOT_FOUND"): "0+20x20",
            _failed("NOT_FOUND", "client", version=""): "0+20x20",
            _failed("DEADLINE_EXCEEDED"): "0+5x20",
        },
        labels=_MODEL,
        description="20% of the predictions of m fail.",
    ),
    AlertCase(
        "TpuserveLatencyHigh",
        "20m",
        fires=_latencies(_LATENCY, 96, 4, method="Predict", code="OK"),
        quiet=_latencies(_LATENCY, 100, 0, method="Predict", code="OK")
        | _latencies(_LATENCY, 0, 100, method="GetModelStatus", code="OK"),
        labels=_MODEL,
        description="The 99th percentile of m is 1.75s.",
    ),
    AlertCase(
        "TpuserveQueueWaitHigh",
        "20m",
        fires=_latencies(_WAIT, 96, 4, signature="serving_default"),
        quiet=_latencies(_WAIT, 1000, 4, signature="serving_default"),
        labels=_MODEL,
        description="1 % of the requests of m wait 1.75s or longer.",
    ),
    AlertCase(
        "TpuserveRefusals",
        "25m",
        fires={
            _requests("OK"): "0+95x30",
            _requests("UNAVAILABLE"): "0+5x30",
            _series("tpuserve_dropped_requests_total", **_VERSION, reason="queue_full", priority="high"): "0+5x30",
        },
        quiet={
            _requests("OK"): "0+95x30",
            _requests("UNAVAILABLE"): "0+5x30",
            _series("tpuserve_dropped_requests_total", **_VERSION, reason="queue_full", priority="low"): "0+5x30",
        },
        labels={"job": "tpuserve"},
        description="tpuserve refuses 5% of the predictions.",
    ),
    AlertCase(
        "TpuserveBudgetRefusals",
        "25m",
        fires={_series("tpuserve_budget_refusals_total", **_SERVER, budget="receiving"): "0+3x30"},
        quiet={_series("tpuserve_budget_refusals_total", **_SERVER, budget="receiving"): "3x30"},
        labels={**_SERVER, "budget": "receiving"},
        description="a:8501 refused 30 requests in 10 minutes by the budget receiving.",
    ),
    AlertCase(
        "TpuserveDemandHigh",
        "20m",
        fires={
            _series("tpuserve_demand_ratio", job="tpuserve", instance="a"): "1.5x30",
            _series("tpuserve_demand_ratio", job="tpuserve", instance="b"): "0.9x30",
        },
        # A second server takes half of the work.
        quiet={
            _series("tpuserve_demand_ratio", job="tpuserve", instance="a"): "1.5x10 0.75x20",
            _series("tpuserve_demand_ratio", job="tpuserve", instance="b"): "_x10 0.75x20",
        },
        labels={"job": "tpuserve"},
        description="The demand for tpuserve has been above the capacity for 15 minutes, and is 120% of it.",
    ),
    AlertCase(
        "TpuserveModelUnavailable",
        "16m",
        fires={_AVAILABLE: "0x20"},
        quiet={_AVAILABLE: "0x10 1x10", _AVAILABLE.replace('"m"', '"removed"'): "0x8 _x12"},
        labels={**_SERVER, "model_name": "m"},
        description="m has had no available version on a:8501 for 15 minutes.",
    ),
    AlertCase(
        "TpuserveLoadFailed",
        "30m",
        fires={_FAILED_LOADS: "_x20 1x10"},
        quiet={_FAILED_LOADS: "1x40", _FAILED_LOADS.replace("failed", "loaded"): "1+1x40"},
        labels={**_SERVER, "model_name": "m", "outcome": "failed"},
        description="a:8501 failed to load a version of m.",
    ),
    AlertCase(
        "TpuserveHungRun",
        "30m",
        fires={_HUNG_RUNS: "0x20 1x10"},
        quiet={_HUNG_RUNS: "1x40"},
        labels=_VERSION,
        description="A run of m version 1 hung on a:8501 in the last 15 minutes.",
    ),
    AlertCase(
        "TpuserveFallback",
        "6m",
        fires={_series("tpuserve_version_device", **_VERSION, device="cpu", fallback="no_memory"): "1x10"},
        quiet={_series("tpuserve_version_device", **_VERSION, device="cpu", fallback="no_programs"): "1x10"},
        labels={**_VERSION, "device": "cpu", "fallback": "no_memory"},
        description="m version 1 runs on cpu of a:8501: no_memory.",
    ),
    AlertCase(
        "TpuserveUnwarmedRuns",
        "35m",
        fires={_UNWARMED: "0+2x40", _series("tpuserve_version_device", **_VERSION, device="tpu"): "1x40"},
        quiet={_UNWARMED: "0+2x40", _series("tpuserve_version_device", **_VERSION, device="cpu"): "1x40"},
        labels=_VERSION,
        description="m version 1 ran 30 new shapes in 15 minutes on a:8501.",
    ),
    AlertCase(
        "TpuserveDeviceMemoryHigh",
        "11m",
        fires={
            _series("tpuserve_device_memory_bytes", **_SERVER, device="tpu:0", kind="in_use"): "96x20",
            _series("tpuserve_device_memory_bytes", **_SERVER, device="tpu:0", kind="limit"): "100x20",
        },
        quiet={
            _series("tpuserve_device_memory_bytes", **_SERVER, device="tpu:0", kind="in_use"): "90x20",
            _series("tpuserve_device_memory_bytes", **_SERVER, device="tpu:0", kind="peak"): "99x20",
            _series("tpuserve_device_memory_bytes", **_SERVER, device="tpu:0", kind="limit"): "100x20",
        },
        labels={**_SERVER, "device": "tpu:0"},
        description="tpu:0 of a:8501 uses 96% of its memory.",
    ),
    AlertCase(
        "TpuserveTelemetryDropped",
        "35m",
        fires={
            _series("tpuserve_request_log_dropped_total", **_SERVER, model_name="m", reason="queue_full"): "0+2x40",
            _series("tpuserve_traces_dropped_total", **_SERVER, reason="queue_full"): "0+2x40",
        },
        quiet={
            _series("tpuserve_request_log_dropped_total", **_SERVER, model_name="m", reason="queue_full"): "2x40",
            _series("tpuserve_traces_dropped_total", **_SERVER, reason="rate"): "0+2x40",
        },
        labels={**_SERVER, "reason": "queue_full"},
        description="a:8501 dropped 60 log entries or traces in 15 minutes by queue_full.",
    ),
    AlertCase(
        "TpuserveFileDescriptors",
        "11m",
        fires={
            _series("process_open_fds", **_SERVER): "900x20",
            _series("process_max_fds", **_SERVER): "1000x20",
        },
        quiet={
            _series("process_open_fds", **_SERVER): "500x20",
            _series("process_max_fds", **_SERVER): "1000x20",
        },
        labels=_SERVER,
        description="a:8501 uses 90% of its file descriptors.",
    ),
    AlertCase(
        "TpuserveConnectionsHigh",
        "11m",
        fires={
            _series("process_open_fds", **_SERVER): "950x20",
            _series("tpuserve_max_connections", **_SERVER): "1000x20",
        },
        quiet={
            _series("process_open_fds", **_SERVER): "950x5 500x20",
            _series("tpuserve_max_connections", **_SERVER): "1000x20",
        },
        labels=_SERVER,
        description="a:8501 uses 95% of --max_connections.",
    ),
    AlertCase(
        "TpuserveCertificateExpires",
        "1m",
        # promtool's time begins at 0.
        fires={_series(_EXPIRY, **_SERVER, certificate="server"): f"{60 + 13 * 86400}x5"},
        quiet={_series(_EXPIRY, **_SERVER, certificate="server"): f"{60 + 15 * 86400}x5"},
        labels={**_SERVER, "certificate": "server"},
        description="A certificate of a:8501 (server) expires in 13 days.",
    ),
    AlertCase(
        "TpuserveCertificateReloadFailed",
        "6m",
        fires={_series("tpuserve_certificate_reload_failed", **_SERVER): "1x10"},
        quiet={_series("tpuserve_certificate_reload_failed", **_SERVER): "1 1 0x10"},
        labels=_SERVER,
        description="a:8501 has kept its certificates for 5 minutes. Its log has the reason.",
    ),
]
