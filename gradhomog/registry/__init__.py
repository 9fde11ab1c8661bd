"""Plugins of installed distributions: listed from metadata, imported on first use, with validated options."""

from gradhomog.registry.registry import Registry, available, installed, using
from gradhomog.registry.specs import KINDS, Kind, PluginInfo

__all__ = ["KINDS", "Kind", "PluginInfo", "Registry", "available", "installed", "using"]
