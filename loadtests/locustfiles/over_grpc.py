"""Send Predict requests over gRPC: `locust -f loadtests/locustfiles/over_grpc.py --model digits`."""

from tpuserve_loadtests.locustfiles.locustfile import predict_users

PredictUser = predict_users("grpc")
