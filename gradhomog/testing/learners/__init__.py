"""The checks of learners, by what they look at."""
