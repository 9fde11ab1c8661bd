"""The content of comparisons that gradhomog includes: domains, benchmarks, networks and multi-task problems."""
