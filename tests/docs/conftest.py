"""The modules that make pages of the site, importable as `_site`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
