"""The first-party homogenizers, one module each, registered through the same entry points as third-party ones."""
