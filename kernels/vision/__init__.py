"""The vision tower of the hybrid family and the model that takes its embeddings."""
