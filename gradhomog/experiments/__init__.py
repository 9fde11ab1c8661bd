"""Comparisons of methods: configured by a run file, computed run by run on any machine, reported on one page.

Public names are imported at their first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
