"""A compiler's process that ends as libtpu may: in the middle of a job, by a signal, with a word on standard error."""

import os
import sys

if __name__ == "__main__":
    sys.stdin.readline()
    print("F0000 check failed: the chip is imaginary", file=sys.stderr, flush=True)
    os.abort()
