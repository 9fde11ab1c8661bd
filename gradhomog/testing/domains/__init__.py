"""The checks of domains, by what they look at."""
