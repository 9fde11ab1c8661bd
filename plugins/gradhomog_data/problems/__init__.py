"""Multi-task problems: pairs of pictures, regression on tables, a toy landscape, and differential equations."""
