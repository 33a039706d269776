"""Models of every framework as functions that are served: named tensors in, named tensors out."""
