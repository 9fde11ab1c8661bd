"""Source of a program that imports the plugins of one distribution in a fresh interpreter and reports side effects."""

PROBE = '''
import contextlib, importlib.metadata, io, json, random, re, sys
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments["path"]
import gradhomog
from gradhomog.registry import Registry
registry = Registry()
info = registry.find(arguments["kind"], arguments["selector"])
infos = [one for one in registry.list(arguments["kind"]) if one.distribution == info.distribution]
modules = {one.selector: one.module.partition(":")[0] for one in (info, *infos)}
early = {"torch", *modules.values()} & set(sys.modules)

import torch, numpy

class ImportBlocker:
    """Makes imports of the distribution's optional packages fail."""
    def __init__(self, names):
        self.names = names
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def requirements(distribution):
    """Names of the required distributions, and of those that only extras require."""
    needed, optional = set(), set()
    for text in importlib.metadata.requires(distribution) or []:
        name = re.match(r"[A-Za-z0-9._-]+", text).group().lower().replace("_", "-")
        (optional if "extra ==" in text else needed).add(name)
    return needed, optional - needed

def required_recursively(names):
    seen = set()
    while names:
        name = names.pop()
        if name not in seen:
            seen.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                names |= requirements(name)[0]
    return seen

packages = importlib.metadata.packages_distributions()
try:
    needed, optional = requirements(info.distribution)
except importlib.metadata.PackageNotFoundError:
    needed, optional = set(), set()
required = required_recursively(needed | {"gradhomog", info.distribution.lower()})
blocked = {
    package for package, owners in packages.items()
    if {owner.lower().replace("_", "-") for owner in owners} & optional - required
}
for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
    del sys.modules[name]
sys.meta_path.insert(0, ImportBlocker(blocked))

def state():
    return {
        "torch's generator": torch.get_rng_state().tolist(), "the default device": torch.get_default_device(),
        "the precision": torch.get_float32_matmul_precision(),
        "numpy's generator": str(numpy.random.get_state()), "Python's generator": random.getstate(),
    }

def import_failure(selector, module):
    if found := {"torch", module} & early:
        return f"listing the plugins imports {', '.join(sorted(found))}"
    for name in [name for name in sys.modules if name not in base and name.partition(".")[0] in own]:
        del sys.modules[name]  # modules that another plugin of the distribution imported must be imported again
    before, printed = state(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            registry.load(arguments["kind"], selector)
        except BaseException as error:
            return f"its import fails without {', '.join(sorted(blocked)) or 'optional packages'}: {error}"
    after = state()
    if changed := [name for name in before if before[name] != after[name]]:
        return "its import changes " + ", ".join(changed)
    return "its import prints " + repr(printed.getvalue()[:100]) if printed.getvalue().strip() else ""

own = {module.partition(".")[0] for module in modules.values()} - {"gradhomog"}
base = set(sys.modules)
json.dump({selector: import_failure(selector, module) for selector, module in modules.items()}, sys.stdout)
'''
