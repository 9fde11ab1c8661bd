"""Experiments of papers: tables and figures with our numbers, the papers' numbers, and the differences."""
