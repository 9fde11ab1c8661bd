"""Rows: gradients of the tasks' query losses, computed in a loop or with vmap."""
