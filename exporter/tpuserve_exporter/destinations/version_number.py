"""The choice of a new version's number: as given, the next one, or a timestamp."""

from tpuserve_exporter.options.export_options import VersionChoice


def choose_number(choice: VersionChoice, taken: list[int], now_s: float) -> int:
    """The number to publish as. A timestamp that is behind what is there goes on counting from the highest."""
    if isinstance(choice, int):
        return choice
    following = max(taken, default=0) + 1
    return following if choice == "next" else max(int(now_s), following)
