"""Plugins of installed distributions: found by their metadata, imported when named, their options checked."""

from gradhomog.registry.plugininfo import KINDS, Kind, PluginInfo
from gradhomog.registry.registry import Registry, installed, using

__all__ = ["KINDS", "Kind", "PluginInfo", "Registry", "installed", "using"]
