"""Networks: their sources, their layers and costs, and the graph in which they run."""
