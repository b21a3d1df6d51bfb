"""The stream graph: nodes, the frozen plan, and the history of RDDs."""
