"""Read files of unknown origin: regular files only, and arrays of `.npz` files, within limits on their sizes.

`open_regular` and `open_npz` check the type and the declared sizes of a file before its content takes memory.
"""

from gradhomog.files.npz import MAX_BYTES, Header, NpzFile, open_npz
from gradhomog.files.regular import open_regular

__all__ = ["MAX_BYTES", "Header", "NpzFile", "open_npz", "open_regular"]
