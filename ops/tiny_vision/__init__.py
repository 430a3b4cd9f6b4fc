"""The embedded vision model: a small hybrid that names the colour and the place of a square it is shown."""
