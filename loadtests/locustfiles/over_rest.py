"""Send Predict requests over REST: `locust -f loadtests/locustfiles/over_rest.py --model digits`."""

from tpuserve_loadtests.plain_locust.locustfile import predict_users

PredictUser = predict_users("rest")
