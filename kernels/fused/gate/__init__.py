"""Products with an activation: silu(gate) * up, x * sigmoid(gate)."""
