"""Shared parts of the adapters of frameworks that train with the sum of several losses."""
