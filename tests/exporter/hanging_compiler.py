"""A compiler's process that takes a job and never answers."""

import sys

if __name__ == "__main__":
    for _ in sys.stdin:
        pass
