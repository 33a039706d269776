"""Send Predict requests over both protocols: `locust -f loadtests/locustfiles/mixed.py --model digits`.

With `--scenario FILE.yaml` instead of `--model`, the users send requests to several models by weight.
"""

from tpuserve_loadtests.locustfiles.locustfile import predict_users

PredictUser = predict_users("grpc", "rest")
