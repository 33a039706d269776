"""A compiler process that accepts a job and never responds."""

import sys

if __name__ == "__main__":
    for _ in sys.stdin:
        pass
