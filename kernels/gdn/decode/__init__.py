"""One step of a whole layer between its projections: convolution, norms, gates, delta rule, gated norm."""
