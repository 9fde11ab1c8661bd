"""Gradient homogenization for meta-learning and multi-task learning.

A learner maps tasks to a Jacobian, one gradient per task; homogenizers change it before the step. Public names are
imported at their first use, so that `import gradhomog` does not import torch.
"""

import lazy_loader

from gradhomog._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
