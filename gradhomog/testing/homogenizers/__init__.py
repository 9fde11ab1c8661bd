"""The checks of homogenizers, by what they look at."""
