"""The host of a pipeline's stages: it makes members, validates inputs and results, and runs one step."""
