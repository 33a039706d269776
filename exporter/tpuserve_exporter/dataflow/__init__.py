"""Data-flow analysis of graphs: which outputs depend on batch statistics, random numbers or assignments."""
