"""Predict requests over both protocols: `locust -f loadtests/locustfiles/mixed.py --model digits`.

With `--scenario FILE.yaml` instead of a model, of several models by their weights.
"""

from tpuserve_loadtests.plain_locust.locustfile import predict_users

PredictUser = predict_users("grpc", "rest")
