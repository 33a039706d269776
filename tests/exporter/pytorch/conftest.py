"""Tests of PyTorch models. They run in an environment with torch (make torch), which test_torch_environment starts."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
