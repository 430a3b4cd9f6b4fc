"""Attention of single tokens over a cache, split over positions and joined."""
