"""Built-in domains: rendered glyphs, function families, and readers of images on disk.

`glyphs`, `functions` and `images` are plugin modules, loaded by their entry points. A plugin for other image data can
use the class `ClassImages` directly.
"""

from gradhomog_data.domains.class_images import ClassImages

__all__ = ["ClassImages"]
