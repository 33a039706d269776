"""What the values of a graph depend on, read from the graph: statistics over rows, random numbers, assignments."""
