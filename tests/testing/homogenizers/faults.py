"""Faulty homogenizers, by the module of the check that must find them."""

import collections
import math
import random
import time

import torch

from gradhomog import OptionError
from tests.testing.faults import fails, fault
from tests.testing.homogenizers.good import Balance, Clip, Drop, LossRatio, Rotate

# A fault is its name, the good plugin, the check with its message, and the change.
# fmt: off

# -- declarations ----------------------------------------------------------------------------------------------------

fault("NoSummary", Clip, "documented", "`summary` must be one line of 1 to 100 characters; got ''", {"summary": ""})
fault("NoReference", Clip, "documented", "`reference` is empty: give the source", {"reference": ""})
fault("NoDocstring", Clip, "documented", "the factory has no docstring", __doc__=None)
fault("UndocumentedOption", Balance, "documented", "does not describe these options: rate$",
      __doc__="Undocumented: the words generates and separate do not describe the option.")


class NoAnnotation(Balance):
    """An option without annotation, which accepts any value."""

    def __init__(self, rate=0.5):
        super().__init__(rate)


class RaisesValueError(Balance):
    """A ValueError for values outside a range that the annotation does not state."""

    error = ValueError("out of range")

    def __init__(self, rate: float = 0.5):
        super().__init__(rate)
        if not 0 < rate <= 1:
            raise self.error


ALLOWED = "option `rate`=.* is allowed by its annotation, but raises (ValueError|PluginRunError): .*"
fails("options_validated", "option `rate` has no type annotation")(NoAnnotation)
fails("options_work", ALLOWED + "out of range")(RaisesValueError)
fault("NamelessError", RaisesValueError, "options_work", "the error for option `rate`=.* names no option: must be",
      error=OptionError("must be positive"))

# -- directions ------------------------------------------------------------------------------------------------------


def squared_in_the_dtype_of_the_rows(self, good, jacobian):
    squares = sum(block.flatten(1).square().sum(dim=1) for block in jacobian.materialize().values())
    return torch.where(squares > 0, squares, 1).sqrt().double()


def majority_vote_of_signs_per_coordinate(self, good, block, scale):
    majority_sign = block.sign().sum(dim=0).sign()
    return torch.where(block.sign() * majority_sign < 0, 0, block)


def norms_by_slot(self, good, step):
    norms = step.norms()
    before = torch.tensor([self.average.get(slot, float(norms[slot])) for slot in range(step.tasks)])
    return torch.lerp(before.to(norms), norms, self.rate)


def projected_once(self, good, step):  # off all rows that conflict, which causes new conflicts of three rows
    gramian = step.gramian()
    squares = gramian.diagonal()
    return torch.eye(len(gramian)).double() - gramian.clamp_max(0) / torch.where(squares > 0, squares, 1)


def normalized(weights):
    return len(weights) * weights / weights.sum()


def ratios_with_an_epsilon(self, good, losses, average):
    return normalized(torch.where(average > 0, losses / (average + 1e-8), 1))


def random_for_zero(self, good, block, scale):
    noise = torch.randn(block.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return block if bool(block.any()) else noise.to(block.dtype)


def each_tensor_clipped(self, good, step):
    return step.jacobian.map(
        lambda block: self.scaled(block, self.scale(block.double().reshape(len(block), -1).norm(dim=1))))


def steps_counted(self, good, step):
    return {**good(step), "steps": self.steps + 1}


COUNTS = {"state_names": ("angles", "steps"), "steps": 0, "update": steps_counted}


fault("DividesByNorm", Balance, "finite_for_finite_rows", "returned NaN or infinity from `mix`",
      weights=lambda self, good, norms: normalized(1 / norms))
fault("SquaresInHalf", Clip, "half_precision", "returned NaN or infinity from `rows`",
      lengths=squared_in_the_dtype_of_the_rows)
fault("ClipsEachTensor", Clip, "dict_rows", "a dict of rows: off by", rows=each_tensor_clipped)
fault("ClipsAllTensorsTogether", Clip, "per_tensor", "the direction in the tensor `weight`: off by",
      {"claims": "per_tensor"})
fault("Sums", Balance, "identical_rows", "2 identical rows: off by 1 .* cause: the weights sum to 4 instead of 2",
      weights=lambda self, good, norms: len(norms) * good(norms))
fault("EpsilonInTheDenominator", Balance, "identical_rows", "Likely cause: an absolute epsilon",
      weights=lambda self, good, norms: len(norms) * norms / (norms.sum() + 1e-6))
fault("RandomDirectionForZeroRows", Clip, "zero_rows_give_zero_direction",
      "zero rows give a direction that is not zero", scaled=random_for_zero)
fault("DoublesFeaturesLater", Rotate, "identical_tasks", "after [23] steps on identical tasks: off by",
      transform=lambda self, good, features, keys: (1 + self.steps) * good(features, keys), **COUNTS)
fault("SumsDicts", Clip, "identical_tasks", "after 1 steps on identical tasks: off by",
      rows=lambda self, good, step: good(step).map(
          lambda block: block if step.jacobian.names == ("",) else len(block) * block))
fault("StateBySlotOfRows", Balance, "permutation_equivariant", r"rows in the order \[.*\]: off by",
      norms=norms_by_slot, update=lambda self, good, step: {"average": dict(enumerate(self.norms(step).tolist()))})
# The norms of rows of 1e-18 have squares of 1e-36.
fault("TinyEpsilon", Balance, "scale_equivariant", r"rows times 2\^-\d+: off by .* Likely cause: an absolute epsilon",
      weights=lambda self, good, norms: good((norms.square() + 1e-30).sqrt()))
fault("EpsilonBesideLosses", LossRatio, "loss_scale_invariant", "the direction with losses times 1e-12: off by",
      weights=ratios_with_an_epsilon)
fault("VotesBySign", Clip, "rotation_equivariant", "rotated rows: off by",
      scaled=majority_vote_of_signs_per_coordinate)
fault("ProjectsOnce", Balance, "non_conflicting", "the direction conflicts with a row",
      {"claims": "non_conflicting", "needs": ("gramian", "norms")}, mix=projected_once)

# -- side effects ----------------------------------------------------------------------------------------------------


def zeroed(self, good, block, scale):  # `.data` does not increase the version counter
    block.data[scale < 1] = 0
    return block


def normalized_in_place(self, good, step):  # other homogenizers read feature gradients too
    step.feature_grads.div_(step.feature_grads.norm())
    return good(step)


def passed_by_attribute(self, good, step):
    self.last = good(step)
    return self.last


def updated_in_place(self, good, step):
    self.average.update(good(step)["average"])
    return {"average": self.average}


def rotated_in_place(self, good, features, keys):
    rotated = good(features, keys) + 1
    features.data.copy_(rotated.detach())
    return rotated - 1


def drops_pixels(self, good, encoder):
    def drop(module, inputs):
        inputs[0].mul_(self.draw(inputs[0].shape))

    return [encoder.register_forward_pre_hook(drop)]


def seeds_torch(self, good, seed: int = 0):
    torch.manual_seed(seed)
    good(seed)


def seeded_from_the_clock(self, good, key, part, generator):
    generator.seed()
    good(key, part, generator)


def kept_in_a_dict_of_lists(self, good, features, keys):
    self.seen = {key.by(): [features] for key in keys}
    return good(features, keys)


def drawn_by_python(self, good, norms):
    return normalized(torch.tensor([random.random() for _ in norms], dtype=norms.dtype))


fault("ZeroesData", Clip, "inputs_unchanged", "modified `jacobian` in place in `rows`", scaled=zeroed)
fault("NormalizesInPlace", Rotate, "inputs_unchanged", "modified `feature_grads 0` in place in `update`",
      update=normalized_in_place)
fault("RotatesInPlace", Rotate, "inputs_unchanged", "the features passed to `transform`: not exactly equal",
      transform=rotated_in_place)
fault("DropsPixels", Drop, "inputs_unchanged", "`support_x` after the steps: not exactly equal", attach=drops_pixels)
fault("PassesByAttribute", Balance, "no_stage_writes_to_self",
      "`mix` changes `self.last`: return new state from `update`", mix=passed_by_attribute)
fault("UpdatesInPlace", Balance, "no_stage_writes_to_self", "`update` changes `self.average`",
      update=updated_in_place)
fault("MeasuresTime", LossRatio, "no_stage_writes_to_self", "`measured` returns other numbers in a second call",
      measured=lambda self, good, step: {"seconds": time.perf_counter()})
fault("DrawsFromPython", Balance, "global_generators_unchanged", "draws from the global generator of Python",
      weights=drawn_by_python)
fault("SeedsTorch", Drop, "global_generators_unchanged", "draws from the global generator of torch",
      __init__=seeds_torch)
fault("SeedsFromTheClock", Drop, "same_seed_same_results", "of two instances with the same options: not exactly equal",
      begin=seeded_from_the_clock)
fault("ClaimsStochastic", Balance, "stochastic", "two seeds give the same results: draw from `step.generator`",
      {"claims": "stochastic"})
fault("KeepsGraphInDict", Rotate, "no_graph_kept",
      r"`seen\['domain \d'\]\[0\]` of KeepsGraphInDict keeps the graph", transform=kept_in_a_dict_of_lists)

# -- stages in the encoder -------------------------------------------------------------------------------------------


class Handle:
    """A handle with a custom `remove`."""

    def __init__(self, remove):
        self.remove = remove


def part_kept(self, good, key, part, generator):
    good(key, part, generator)
    self.part = part


def masks_of_queries_drawn_again(self, good, module, inputs, output):
    if self.part == "query":
        self.masks = {}
    return good(module, inputs, output)


def leaves_a_hook(self, good, encoder):
    encoder[0].register_forward_hook(lambda module, inputs, output: output + 1)
    return good(encoder)


def leaves_forward(self, good, encoder):  # as an attribute of the instance
    forward = encoder.forward
    encoder.forward = lambda inputs: forward(inputs) * 2
    return [Handle(lambda: setattr(encoder, "forward", forward))]


def patches_the_class_of_a_layer(self, good, encoder):
    kind = type("Louder", (type(encoder[0]),), {"forward": lambda layer, x: 2 * super(kind, layer).forward(x)})
    encoder[0].__class__ = kind
    return good(encoder)


def leaves_a_hook_on_a_parameter(self, good, encoder):
    encoder[0].weight.register_hook(lambda gradient: 0.5 * gradient)
    return good(encoder)


def scales_weights(self, good, encoder):
    encoder[0].weight.data.mul_(0.99)
    return good(encoder)


def restored_after_a_query_part(self, good, encoder):  # which a failed task may not reach
    encoder[0].requires_grad_(False)
    return [Handle(lambda: encoder[0].requires_grad_(self.part == "query"))]


def patched_before_its_hook(self, good, encoder):  # whose registration may raise
    dropped = encoder[0]
    encoder[0] = torch.nn.Sequential(dropped)
    (handle,) = good(encoder)
    return [handle, Handle(lambda: encoder.__setitem__(0, dropped))]


LEFT = "hooks, parameters or `forward` are left"
# −1 is a rotation in six dimensions, but not in five.
fault("Negates", Rotate, "orthogonal", "matrix of task 0 has determinant −1",
      matrix=lambda self, good, angle, features: -good(angle, features))
# The norm of the matrix grows slightly with every update, as with steps along the tangent.
fault("Drifts", Rotate, "orthogonal", "after 2000 updates.*RᵀR of task 0 differs from the identity",
      matrix=lambda self, good, *arguments: good(*arguments) * math.sqrt(1 + 1e-12 * self.steps), **COUNTS)
fault("Shifts", Rotate, "orthogonal", "`transform` is not linear in the features",
      transform=lambda self, good, features, keys: good(features - 1, keys) + 1)
fault("KeepsSupportMasksOnly", Drop, "constant_between_begins", "in a second run on query inputs: not exactly equal",
      begin=part_kept, drop=masks_of_queries_drawn_again)
for check in ("detached_completely", "removed_at_meta_test"):
    fault("LeavesHook", Drop, check, "1 hook remained on the encoder after the handles were removed",
          attach=leaves_a_hook)
    fault("LeavesForward", Drop, check, LEFT, attach=leaves_forward)
    fault("ScalesWeights", Drop, check, "`0.weight`.*not exactly equal", attach=scales_weights)
fault("PatchesClass", Drop, "removed_at_meta_test", LEFT, attach=patches_the_class_of_a_layer)
fault("LeavesHookOnParameter", Drop, "removed_at_meta_test", LEFT, attach=leaves_a_hook_on_a_parameter)
fault("RestoredByLastTask", Drop, "removed_at_meta_test", "after a task of .* failed, the encoder has changed",
      begin=part_kept, attach=restored_after_a_query_part)
fault("RotatesForwardOnly", Rotate, "rows_are_derivatives",
      "is not the derivative of the loss: along a random direction",
      transform=lambda self, good, features, keys: features + (good(features, keys) - features).detach())
fault("PatchesBeforeHook", Drop, "detached_completely", "after `attach` raised at hook 1, the encoder has changed",
      attach=patched_before_its_hook)

# -- derivatives -----------------------------------------------------------------------------------------------------

WRONG = r"derivative of the direction w.r.t. the {} is wrong in the {} step, with \d tasks: .* give .*\. Likely cause: "


class FirstOrderFunction(torch.autograd.Function):
    """Weights whose first derivative is correct, but has no graph."""

    @staticmethod
    def forward(ctx, norms):
        ctx.save_for_backward(norms)
        return len(norms) * norms / norms.sum()

    @staticmethod
    def backward(ctx, grad_output):
        (norms,) = (saved.detach() for saved in ctx.saved_tensors)
        total = norms.sum()
        return len(norms) * (grad_output / total - (grad_output.detach() @ norms) / total**2)


def root_of_squares(self, good, jacobian):  # at a zero row its derivative is infinite, and infinity times zero is NaN
    return sum(block.double().flatten(1).square().sum(dim=1) for block in jacobian.materialize().values()).sqrt()


fault("DetachesTheGramian", LossRatio, "differentiable",
      WRONG.format("rows", "first") + "`mix` detaches its rows .or norms, or Gramian", {"needs": ("losses", "gramian")},
      mix=lambda self, good, step: normalized(step.losses + step.gramian().detach().diagonal()))
fault("DetachesLosses", LossRatio, "differentiable", WRONG.format("losses", "second") + "`mix` detaches its losses",
      weights=lambda self, good, losses, average: good(losses.detach(), average))
fault("InitializesFromThisStep", LossRatio, "differentiable",
      WRONG.format("losses", "first") + "state is initialized from this step's losses",
      weights=lambda self, good, losses, average: good(losses, torch.where(average > 0, average, losses.detach())))
fault("DetachesRows", Clip, "differentiable", WRONG.format("rows", "first") + "`rows` detaches its rows",
      rows=lambda self, good, step: good(step).detach())
fault("WeightsByItem", Balance, "differentiable",
      WRONG.format("rows", "first") + "a part of the computation is detached",
      weights=lambda self, good, norms: len(norms) * norms / norms.sum().item())
fault("DetachesAfterFirstStep", Balance, "differentiable", WRONG.format("rows", "second") + "`mix` detaches its rows",
      norms=lambda self, good, step: good(step).detach() if self.average else good(step))
fault("FirstOrderOnly", Balance, "differentiable",
      "the second derivative w.r.t. the rows is wrong .* Likely cause: a custom backward",
      weights=lambda self, good, norms: FirstOrderFunction.apply(norms))
fault("RootAtZero", Clip, "differentiable", "with a zero row a derivative is NaN", lengths=root_of_squares)
fault("DetachesDicts", Clip, "meta_gradient",
      "the derivative of the direction of rows in a dict is .*; finite differences give",
      rows=lambda self, good, step: good(step) if step.jacobian.names == ("",) else good(step).detach())

# -- state -----------------------------------------------------------------------------------------------------------


def deque(self, good, step):  # `torch.load` rejects it with `weights_only=True`
    return {"losses": {key: collections.deque(values) for key, values in good(step)["losses"].items()}}


def written_to_itself(self, good, step):
    self.losses.update(good(step)["losses"])
    return {}


def last_task_of_domain(self, good, step):  # overwrites the state of the first
    return {"average": {**self.average, **dict(zip(step.names, self.norms(step).tolist(), strict=True))}}


def first_task_doubled(self, good, losses, average):
    weights = good(losses, average)
    return normalized(torch.cat([2 * weights[:1], weights[1:]]))


fault("SavesNothing", Drop, "resumes_from_state_dict",
      "after it was saved and loaded during training: not exactly equal",
      state_dict=lambda self, good: {}, load_state_dict=lambda self, good, state: None)
fault("SavesObjects", LossRatio, "resumes_from_state_dict",
      "holds other objects than tensors, numbers, strings, lists and dicts", update=deque)
fault("ReturnsLiveState", LossRatio, "state_owns_its_memory",
      "after the state was saved, further training of the original writes to it",
      update=written_to_itself, state_dict=lambda self, good: {"losses": self.losses})
fault("KeepsLoadedState", LossRatio, "state_owns_its_memory",
      "after the state was loaded, further training writes to it",
      update=written_to_itself, load_state_dict=lambda self, good, state: setattr(self, "losses", state["losses"]))
fault("PicklesOptionsOnly", LossRatio, "resumes_from_pickle",
      "after it was pickled during training: not exactly equal",
      __getstate__=lambda self, good: {"size": self.size, "losses": {}})
fault("ClaimsState", Clip, "stateful", "`state_names` is empty", {"claims": "stateful"})
fault("ClaimsMomentum", LossRatio, "momentum", "does not depend on earlier steps, as the trait `momentum` claims",
      {"claims": "momentum"})
# One tensor of norms by position, whose size changes if a task is dropped.
fault("FixedTaskCount", Balance, "nonfinite_policy", "raised in `mix`.*must match the size of tensor",
      norms=lambda self, good, step: self.average.get("first", 0) + step.norms(),
      update=lambda self, good, step: {"average": {"first": self.norms(step)}})
fault("KeepsViewOfLosses", LossRatio, "state_owns_its_memory",
      "the state changes when the caller's rows, losses or features are overwritten", state_names=("losses", "last"),
      last=0.0, update=lambda self, good, step: {**good(step), "last": step.losses[0]})
fault("LastTaskOfDomain", Balance, "state_by_name",
      r"the state\['0:LastTaskOfDomain'\]\['average'\]\['a'\] after 1 steps in which .*: off by",
      update=last_task_of_domain)
fault("FirstTaskOfDomain", LossRatio, "state_by_name",
      "the direction after 1 steps in which the order of tasks named a, a, b, c changed: off by",
      weights=first_task_doubled)

# -- memory ----------------------------------------------------------------------------------------------------------


def never_shortened(self, good, step):
    losses = zip(step.names, step.losses.tolist(), strict=True)
    return {"losses": {key: [*self.losses.get(key, []), loss] for key, loss in losses}}


def all_masks_kept(self, good, key, part, generator):
    self.kept = [*getattr(self, "kept", []), *self.masks.values()]
    good(key, part, generator)


fault("UnboundedWindow", LossRatio, "memory_constant", r"the object grows by \d+ bytes with every step",
      update=never_shortened)
fault("KeepsMasks", Drop, "memory_constant", r"the tensors of the process grow by \d+ bytes with every step",
      begin=all_masks_kept)
