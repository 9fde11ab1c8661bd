"""Entry point of `python -m gradhomog`, for environments in which the script `gradhomog` is not on the path."""

import sys

from gradhomog.cli import main

if __name__ == "__main__":  # worker processes import this module again
    sys.exit(main())
