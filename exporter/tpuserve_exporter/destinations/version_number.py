"""The choice of a new version's number: as given, the next one, or a timestamp."""

from tpuserve_exporter.options.export_options import VersionChoice


def choose_number(choice: VersionChoice, taken: list[int], now_s: float) -> int:
    """Return the number to publish as. A timestamp that is not above all taken numbers becomes the highest plus one."""
    if isinstance(choice, int):
        return choice
    following = max(taken, default=0) + 1
    return following if choice == "next" else max(int(now_s), following)
