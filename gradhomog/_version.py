"""The version, in a module of its own so that no other module imports the package for it."""

__version__ = "0.2.0"
