"""Request log: sampled requests and responses as PredictionLogs in rotating files, for replay and training."""
