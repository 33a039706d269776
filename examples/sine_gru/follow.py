"""Follow series with a served GRU, one value per request. The client keeps the state that the server returns.

tpuserve serve --model_name=sine_gru --model_base_path=$PWD/models/sine_gru
python examples/sine_gru/follow.py --steps 10
python examples/sine_gru/follow.py --steps 10 --server http://localhost:8501
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.sine_gru.data import make
from examples.sine_gru.model import UNITS
from tpuserve_client import Client, TpuserveError


def follow(client: Client, model: str, series: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return forecasts float32 [series, steps] of each next value, starting from an empty state."""
    state = np.zeros((len(series), UNITS), np.float32)
    forecasts = []
    for value in series.T:
        answer = client.predict(model, {"value": value[:, None], "state": state})
        state = answer["state"]
        forecasts.append(answer["forecast"])
    return np.concatenate(forecasts, axis=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--server",
        default="localhost:8500",
        help="gRPC address or http:// URL of the server (default: localhost:8500).",
    )
    parser.add_argument("--model", default="sine_gru", help="Name of the model on the server (default: sine_gru).")
    parser.add_argument("--steps", type=int, default=20, help="Number of values to read (default: 20).")
    parser.add_argument("--seed", type=int, default=7, help="Seed of the series (default: 7).")
    options = parser.parse_args()
    series = make(1, options.steps + 1, options.seed)
    try:
        with Client(options.server) as client:
            forecasts = follow(client, options.model, series[:, :-1])
    except TpuserveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for value, forecast in zip(series[0, 1:], forecasts[0], strict=True):
        print(f"{value:+.3f}  forecast {forecast:+.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
