"""The preflight: a check without a TPU that device programs compile and fit. libtpu compiles in separate processes."""
