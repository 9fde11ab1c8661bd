"""Sources of plugins to install for a test."""

IMPORTS = "from gradhomog import DomainSpec, Homogenizer, HomogenizerSpec, LearnerSpec, OptionError, hookimpl\n"

FINE = (
    IMPORTS
    + """
class Fine(Homogenizer):
    def __init__(self, strength: float = 1.0) -> None:
        self.strength = strength
    def mix(self, step):
        return step.losses * 0 + self.strength

@hookimpl
def gradhomog_homogenizer():
    return HomogenizerSpec(factory=Fine, summary="fine", needs={"losses"})
"""
)


def hook(body: str, signature: str = "gradhomog_homogenizer()") -> str:
    """Return the source of a module with one marked hook."""
    return f"{IMPORTS}\n@hookimpl\ndef {signature}:\n    {body}\n"
