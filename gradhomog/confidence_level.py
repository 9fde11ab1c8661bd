"""The confidence level of all intervals in tables and figures."""

LEVEL = 0.95
