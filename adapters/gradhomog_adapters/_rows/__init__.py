"""Rows: gradients of the query losses of tasks, formed in a loop or by vmap."""
