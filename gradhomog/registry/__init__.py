"""Plugins of installed distributions: listed from metadata, imported on first use, with validated options."""

from gradhomog.registry.plugininfo import KINDS, Kind, PluginInfo
from gradhomog.registry.registry import Registry, available, installed, using

__all__ = ["KINDS", "Kind", "PluginInfo", "Registry", "available", "installed", "using"]
