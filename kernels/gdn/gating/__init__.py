"""Decay and update strength of each value head from the small projections a and b."""
