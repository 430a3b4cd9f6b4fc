"""Pure projections of InferenceEvent to the shapes of OpenAI's APIs. No I/O, no clocks."""
