"""Whether device programs compile for TPUs and fit, found out without one: libtpu compiles, in its own processes."""
