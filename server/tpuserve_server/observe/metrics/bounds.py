"""Bounds of the histograms: this server's, and those in TensorFlow Serving's sources."""

# Each bound is at most 2.5 times the one before it, which bounds the error of a percentile.
LATENCY_BOUNDS_S = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PADDING_BOUNDS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
# Actual time divided by expected time, with narrow buckets around 1.
RATIO_BOUNDS = (0.5, 0.75, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
# Actual time minus predicted time, in seconds. Late requests are above 0.
ERROR_BOUNDS_S = (-0.1, -0.05, -0.02, -0.01, -0.005, -0.002, -0.001, 0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


def exponential(scale: float, growth: float, count: int) -> tuple[float, ...]:
    """Return TensorFlow's exponential buckets (tensorflow/core/lib/monitoring/sampler.cc), with the same rounding."""
    bounds = [scale]
    for _ in range(count - 1):
        bounds.append(bounds[-1] * growth)
    return tuple(bounds)


# TensorFlow Serving's bounds (servables/tensorflow/util.cc, batching/). Times are in microseconds.
UPSTREAM_LATENCY_BOUNDS_US = exponential(10, 1.8, 33)
UPSTREAM_QUEUE_BOUNDS_US = exponential(100, 1.2, 52)
UPSTREAM_EXAMPLE_BOUNDS = exponential(1, 2, 15)
UPSTREAM_ROW_BOUNDS = exponential(1, 2, 14)

MICROSECONDS = 1e6
UPSTREAM_LATENCY_BOUNDS_S = tuple(bound / MICROSECONDS for bound in UPSTREAM_LATENCY_BOUNDS_US)
# One histogram serves both families: it counts by both sets of bounds, and a value is added once.
BOTH_LATENCY_BOUNDS_S = tuple(sorted({*LATENCY_BOUNDS_S, *UPSTREAM_LATENCY_BOUNDS_S}))
