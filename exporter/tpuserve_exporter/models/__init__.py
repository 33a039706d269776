"""Models of every framework as served functions: named tensors in, named tensors out."""
