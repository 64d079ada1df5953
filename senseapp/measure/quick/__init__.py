"""Quick scan: estimates of every layer from few passes."""
