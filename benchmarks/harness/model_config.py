"""Model configuration files of the benchmarks' servers, in the text format of TensorFlow Serving."""

from pathlib import Path


def config_entry(name: str, base: Path) -> str:
    """Return the entry of a model with versions below `base`."""
    return f'config {{ name: "{name}" base_path: "{base}" model_platform: "tensorflow" }}'


def config_list(*entries: str) -> str:
    """Return a configuration file with the entries."""
    return "\n".join(["model_config_list {", *entries, "}", ""])
