"""The Open Inference Protocol over REST: all paths under /v2."""
