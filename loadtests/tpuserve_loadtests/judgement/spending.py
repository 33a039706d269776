"""Cost and energy of predictions, from the rate of a load, the price of a machine and its power.

A prediction is a row of a successful request. The price of an hour buys the predictions of an hour:

    cost of a million predictions = price per hour / (3,600 s * predictions/s) * 1,000,000
    energy of a prediction        = mean power / predictions/s
"""

from dataclasses import dataclass
from typing import Any, Final

from tpuserve_formats.price import Price, per_million
from tpuserve_loadtests.monitoring.energy import Energy, EnergyFound, Unmeasured

NO_COST: Final = "no request succeeded"


@dataclass(frozen=True, slots=True)
class Spending:
    """Cost and energy of a load with `requests_per_s` successful requests of `rows` rows in the mean."""

    requests_per_s: float
    rows: float
    price: Price | None = None
    energy: EnergyFound = None

    @property
    def predictions_per_s(self) -> float:
        """Rows of successful requests, per second."""
        return self.requests_per_s * self.rows

    @property
    def per_million_predictions(self) -> float | None:
        """The cost of a million predictions, or None without a price or a successful request."""
        return self._per_million(self.predictions_per_s)

    @property
    def per_million_requests(self) -> float | None:
        """The cost of a million successful requests, or None without a price or a successful request."""
        return self._per_million(self.requests_per_s)

    @property
    def work_per_price(self) -> float | None:
        """Predictions per second for a price of 1 per hour, or None without a price."""
        return None if self.price is None else self.predictions_per_s / self.price.per_hour

    @property
    def joules_per_prediction(self) -> float | None:
        """The energy of a prediction, or None without a measurement or a successful request."""
        if not isinstance(self.energy, Energy) or not self.predictions_per_s:
            return None
        return self.energy.total_watts / self.predictions_per_s

    def as_document(self) -> dict[str, Any]:  # plain values of several types
        """Return a JSON document with `cost` and `energy`. Each is None if it does not apply."""
        return {"cost": self._cost_document(), "energy": self._energy_document()}

    def _per_million(self, rate_per_s: float) -> float | None:
        if self.price is None or not rate_per_s:
            return None
        return per_million(self.price.per_hour, rate_per_s)

    def _cost_document(self) -> dict[str, Any] | None:
        if self.price is None:
            return None
        return {
            "price_per_hour": self.price.per_hour,
            "currency": self.price.currency,
            "predictions_per_s": self.predictions_per_s,
            "per_million_predictions": self.per_million_predictions,
            "per_million_requests": self.per_million_requests,
            "predictions_per_s_per_price": self.work_per_price,
            "note": "" if self.predictions_per_s else f"no cost: {NO_COST}",
        }

    def _energy_document(self) -> dict[str, Any] | None:
        match self.energy:
            case Energy(seconds, joules):
                return {
                    "seconds": seconds,
                    "joules": dict(joules),
                    "watts": self.energy.watts,
                    "joules_per_prediction": self.joules_per_prediction,
                    "note": "",
                }
            case Unmeasured(reason):
                unknown = dict.fromkeys(("seconds", "joules", "watts", "joules_per_prediction"))
                return {**unknown, "note": f"not measured: {reason}"}
            case _:
                return None
