"""The domains that come with the package: rendered glyphs, function families, and readers of images on disk.

Each of `glyphs`, `functions` and `images` is a plugin module, reached by its entry-point name; `ClassImages` is the
base that a plugin of one's own image data can use directly.
"""

from gradhomog.experiments.data.domains.class_images import ClassImages

__all__ = ["ClassImages"]
