"""The log of requests and their answers, sampled, for replay and for training: PredictionLogs in files that rotate."""
