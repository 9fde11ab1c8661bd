"""The first-party homogenizers, one module each, registered by entry points as third-party ones are."""
