"""The inner loop of those that adapt: its optimizer, its steps, and the way back through them."""
