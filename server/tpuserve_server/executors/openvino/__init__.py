"""Runs SavedModels with OpenVINO on the CPU, if a trial shows the outputs of TensorFlow in less time."""
