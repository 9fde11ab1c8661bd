"""What runs a step: the stages that a pipeline's members override, what they are shown, and what they return."""
