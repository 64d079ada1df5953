"""Networks: where they come from, their layers and costs, and the graph in which they run."""
