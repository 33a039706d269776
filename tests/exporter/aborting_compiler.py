"""A compiler process that fails like libtpu can: a signal in the middle of a job, with a message on standard error."""

import os
import sys

if __name__ == "__main__":
    sys.stdin.readline()
    print("F0000 check failed: the chip is imaginary", file=sys.stderr, flush=True)
    os.abort()
