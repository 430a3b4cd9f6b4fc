"""Request bodies to InferenceRequest and LoadRequest: every field is checked once, here."""
