"""Locustfile of users that send Predict requests: `locust -f "$(tpuserve loadtest locustfile)" --model digits`.

With `--scenario FILE.yaml` instead of `--model`, the users send requests to several models by weight.
"""

from tpuserve_loadtests import PredictUser

__all__ = ["PredictUser"]
