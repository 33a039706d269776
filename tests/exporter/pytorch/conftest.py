"""Tests of PyTorch models. test_torch_environment runs them in an environment with torch (make torch)."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
