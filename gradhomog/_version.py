"""The version, in a separate module, so that no other module must import the package to read it."""

__version__ = "0.2.0"
