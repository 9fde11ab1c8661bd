"""The first-party homogenizers: one module each, found through the same entry points as anybody's."""
