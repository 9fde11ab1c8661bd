"""The host of a pipeline's stages: creates members, validates inputs and results, and runs the stages of one step."""
