"""Send Predict requests over REST: `locust -f loadtests/locustfiles/over_rest.py --model digits`."""

from tpuserve_loadtests.locustfiles.locustfile import predict_users

PredictUser = predict_users("rest")
