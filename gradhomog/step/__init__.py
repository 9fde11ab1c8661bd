"""Execution of a pipeline's stages: create members, validate inputs and results, run the stages of one step."""
