"""The actors of this domain (device, model, registry), sessions, text machinery, sources."""
