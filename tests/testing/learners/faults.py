"""Faulty learners, by the module of the check that must find them."""

import copy
from dataclasses import replace
from unittest import mock

import torch
from torch import nn

from gradhomog import OptionError, TaskKey, TaskRow
from tests.testing.faults import fails, fault
from tests.testing.learners.good import OneStep

# A fault is its name, the good plugin, the check with its message, and the change.
# fmt: off

# -- declarations ----------------------------------------------------------------------------------------------------


def vague_rejection(self, good, task, key):
    if task.query_y.is_floating_point():
        raise OptionError("not supported")
    return good(task, key)


def metric_of_regression(self, good, tasks):
    result = good(tasks)
    result.metric = "mse"
    return result


fault("RequiresFloat32", OneStep, "computes_rows", "the learner computes no rows: RuntimeError: .*should be the same",
      encode=lambda self, good, parameters, buffers, x: good(parameters, buffers, x.float()))
fault("VagueRejection", OneStep, "task_types_supported_or_rejected",
      "regression is rejected by OptionError: not supported: raise", task_row=vague_rejection)
fault("WrongMetric", OneStep, "task_types_supported_or_rejected",
      "classification: `evaluate` returns mse, 2 scores for 2 tasks; expected accuracy", evaluate=metric_of_regression)

# -- rows ------------------------------------------------------------------------------------------------------------


def with_gradients(change):
    """Change the gradients by name that `differentiate` returns."""

    def differentiate(self, good, loss, taps):
        gradients, grads = good(loss, taps)
        return change(gradients), grads

    return differentiate


def features_with_graph(self, good, loss, outputs, taps, gradients, grads):
    found = good(loss, outputs, taps, gradients, grads)
    found.features = [tap[0] for tap in taps]
    return found


class SharedGenerator(OneStep):
    """All tasks draw from one generator of the learner."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.generator = torch.Generator().manual_seed(0)

    def adapt(self, x, y, buffers):
        noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
        return super().adapt(x + 0.1 * noise, y, buffers)


def averaged_with_a_neighbour(self, good, batch):
    rows = good(batch)
    rows.jacobian = {name: (block + block.roll(1, 0)) / 2 for name, block in rows.jacobian.items()}
    return rows


def first_order(self, good, x, y, buffers):  # ignores that the adapted parameters depend on the initial ones
    adapted = good(x, y, buffers)
    return {name: start + (adapted[name] - start).detach() for name, start in self.starting_point().items()}


def same_gradient_for_all_taps(self, good, loss, taps):
    gradients, grads = good(loss, taps)
    return gradients, [grads[-1]] * len(grads)


# A scalar gradient for a whole tensor broadcasts.
fault("AveragesBias", OneStep, "rows_fit_parameters", "`head.bias` has .*, expected",
      differentiate=with_gradients(lambda found: {**found, "head.bias": found["head.bias"].mean()}))
fault("OmitsGradient", OneStep, "rows_fit_parameters", "one per parameter.*missing or unexpected: .*'head.bias'",
      differentiate=with_gradients(lambda found: {name: found[name] for name in found if name != "head.bias"}))
fault("KeepsGraph", OneStep, "rows_fit_parameters", "`features` requires grad and keeps the task's graph",
      row=features_with_graph)
fault("Float64Gradients", OneStep, "rows_fit_parameters",
      "the gradient of `encoder.0.weight` has the dtype torch.float64; expected torch.float32",
      differentiate=with_gradients(lambda found: {name: gradient.double() for name, gradient in found.items()}))
fails("rows_independent_of_batch", "the loss of task 0 after other batches: off by")(SharedGenerator)
fault("AveragesWithNeighbour", OneStep, "rows_independent_of_batch",
      "the row of task 0 in reversed order, `encoder.0.weight`: off by", rows=averaged_with_a_neighbour)
fault("FirstOrder", OneStep, "exact_rows", "the row of `encoder.0.weight` is not the derivative of the query loss",
      adapt=first_order)
fault("SameGradientForAllTaps", OneStep, "feature_grads",
      "`feature_grads` before the transform are not the derivative of the loss",
      differentiate=same_gradient_for_all_taps)
fault("LastTapOnly", OneStep, "feature_grads", "`rows` returns 1 features and 1 feature_grads; expected two of each",
      row=lambda self, good, loss, outputs, taps, gradients, grads: good(
          loss, outputs, taps[-1:], gradients, grads[-1:]))

# -- stages of homogenizers ------------------------------------------------------------------------------------------


def encoded_before_begin(self, good, task, key):  # to read the shape of the features
    self.encode(self.starting_point(), self.buffers(), task.support_x)
    return good(task, key)


class IgnoresTransform(OneStep):
    """Calls `transform` but passes the original features to the head."""

    def classify(self, parameters, buffers, features):
        return super().classify(parameters, buffers, self.encoded + 0 * features)

    def encode(self, parameters, buffers, x):
        self.encoded = super().encode(parameters, buffers, x)
        return self.encoded


def without_the_dimension_of_tasks(self, good, features, key):
    self.homogenizers.transform(features, [key])
    return [features[None]]


class ForwardOnly(nn.Module):
    """Calls only `forward` of a module, which runs no hooks."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module.forward(x)


def bypassing_hooks(self, good, part, tensors, x):
    own = {name.replace(part, "module", 1): value for name, value in tensors.items() if name.startswith(part)}
    return torch.func.functional_call(ForwardOnly(getattr(self, part)), own, (x,))


def transformed_at_meta_test(self, good, support_x, support_y, query_x):
    buffers = self.buffers()
    with torch.enable_grad():
        adapted = self.adapt(support_x, support_y, buffers)
    features = self.encode(adapted, buffers, query_x)
    self.homogenizers.transform(features[None], [TaskKey(0, "domain 0")])
    return self.classify(adapted, buffers, features).detach()


def attached_at_meta_test(self, good, *inputs):
    with self.homogenizers.attached(self.encoder):
        return good(*inputs)


fault("EncodesBeforeBegin", OneStep, "begin_before_encoder", "inputs before the first `homogenizers.begin`",
      task_row=encoded_before_begin)
fault("OneKeyForAll", OneStep, "begin_before_encoder", r"inputs of task 1 after .*slot=0",
      task_row=lambda self, good, task, key: good(task, TaskKey(0, key.domain)))
fault("NeverTransforms", OneStep, "transforms_queries", "`transform` is not called with TaskKey",
      transform=lambda self, good, features, key: [features[None]])
fails("transforms_queries", "`transform` sets all query features to zero, but the outputs of the queries differ")(
    IgnoresTransform)
fault("TransformsWithoutTaskDimension", OneStep, "transforms_queries",
      r"the shape \(9, 4\) and 1 keys; expected \[tasks, queries, features\]",
      transform=without_the_dimension_of_tasks)
fault("BypassesHooks", OneStep, "attachments_take_effect",
      "a hook from `attach` sets all features to zero, but the outputs of the queries differ", call=bypassing_hooks)
fault("TransformsAtMetaTest", OneStep, "homogenizers_removed",
      "`evaluate` or `predict` calls the homogenizers: .*'transform'", adapted_outputs=transformed_at_meta_test)
fault("AttachesAtMetaTest", OneStep, "homogenizers_removed",
      "a prediction after training with homogenizers: not exactly equal", predict=attached_at_meta_test)

# -- steps -----------------------------------------------------------------------------------------------------------


def added_to_old_gradients(self, good, batch, outer):
    step, old = outer.step, [parameter.grad.clone() for parameter in self.parameters()]

    def step_on_sums():
        for parameter, gradient in zip(self.parameters(), old, strict=True):
            parameter.grad += gradient
        step()

    with mock.patch.object(outer, "step", step_on_sums):
        return good(batch, outer)


def other_losses_reported(self, good, batch, outer):
    report = good(batch, outer)
    return replace(report, losses=report.losses / 2)


def homogenizers_ignored(self, good, encoder, head, homogenizers=None, **options):
    good(encoder, head, None, **options)


def homogenizers_reset(self, good, batch, outer):
    state = self.homogenizers.state_dict()
    report = good(batch, outer)
    self.homogenizers.load_state_dict(state)
    return report


def nan_replaced_by_zero(self, good, task, key):
    row = good(task, key)
    row.loss = row.loss.nan_to_num()
    row.gradients = {name: gradient.nan_to_num() for name, gradient in row.gradients.items()}
    row.feature_grads = [gradient.nan_to_num() for gradient in row.feature_grads]
    return row


fault("AddsToOldGradients", OneStep, "steps_on_mean", "after 1 steps of Adam: off by", step=added_to_old_gradients)
fault("ReportsOtherLosses", OneStep, "steps_on_mean", "the losses in the step's report: off by",
      step=other_losses_reported)
fault("IgnoresHomogenizers", OneStep, "steps_homogenized", "after 1 steps of Adam: off by",
      __init__=homogenizers_ignored)
fault("ResetsHomogenizers", OneStep, "steps_homogenized", "after [23] steps of Adam: off by", step=homogenizers_reset)
fault("ReplacesNaN", OneStep, "nonfinite_reported", "a step with NaN in `support_x` does not raise",
      task_row=nan_replaced_by_zero)

# -- side effects ----------------------------------------------------------------------------------------------------


def differentiated_by_backward(self, good, loss, taps):
    loss.backward(retain_graph=True)
    return good(loss, taps)


def remains_in_evaluation_mode(self, good, *inputs):
    outputs = good(*inputs)
    self.mode = lambda training: torch.enable_grad()
    self.encoder.eval()
    return outputs


def leaves_hooks(self, good, parameters, buffers, x):
    self.encoder.register_forward_hook(lambda module, inputs, features: None)
    return good(parameters, buffers, x)


def scaled_in_place(self, good, task, key):  # restored only without an error
    weight = self.parameters()[0]
    weight.data.mul_(2)
    row = good(task, key)
    weight.data.div_(2)
    return row


def errors_swallowed(self, good, task, key):
    try:
        return good(task, key)
    except Exception:
        zeros = {name: torch.zeros_like(value) for name, value in self.named_parameters().items()}
        features = [task.query_x.new_zeros(len(task.query_x), self.head.in_features)]
        return TaskRow(task.query_x.new_zeros(()), zeros, task.query_x.new_zeros(9, 3), features, features)


def flag_kept_after_an_error(self, good, parameters, buffers, x):
    scale = 2 if self.running else 1
    self.running = True
    features = good(parameters, buffers, scale * x)
    self.running = False
    return features


def cause_hidden(self, good, task, key):
    try:
        return good(task, key)
    except Exception:
        failed = True
    raise RuntimeError("something went wrong" if failed else "")


# Runs the modules with their own buffers.
fault("WritesStatistics", OneStep, "no_side_effects",
      "after `rows`, these have changed: the buffer `encoder.1.running_mean`", buffers=lambda self, good: {})
fault("WritesStatisticsInSteps", OneStep, "batch_norm",
      "the buffer `encoder.1.running_mean` after three steps: not exactly equal", buffers=lambda self, good: {})
fault("LeavesGradients", OneStep, "no_side_effects",
      "after `rows`, these have changed: `.grad` of `encoder.0.weight`", differentiate=differentiated_by_backward)
fault("RemainsInEvaluationMode", OneStep, "no_side_effects",
      "after `evaluate`, these have changed: the modes of the encoder", adapted_outputs=remains_in_evaluation_mode)
fault("LeavesHooks", OneStep, "no_side_effects",
      "after `rows`, these have changed: the hooks and attributes of the encoder", encode=leaves_hooks)
fault("SeedsTorch", OneStep, "no_side_effects",
      "after `rows`, these have changed: the global generator of torch",
      adapt=lambda self, good, *inputs: (torch.manual_seed(0), good(*inputs))[1])
fault("CentresInPlace", OneStep, "no_side_effects", "the tasks' tensors after `rows`: not exactly equal",
      encode=lambda self, good, parameters, buffers, x: good(parameters, buffers, x.sub_(x.mean())))
fault("ScalesInPlace", OneStep, "restored_after_failure",
      r"after the \w+ raised at call \d of a step of two tasks, these have changed: the parameter",
      task_row=scaled_in_place)
fault("SwallowsErrors", OneStep, "restored_after_failure",
      "after the encoder raised at call 1 .*: the step does not raise", task_row=errors_swallowed)
fault("KeepsRunningFlag", OneStep, "restored_after_failure",
      "the next losses after the encoder raised .*: not exactly equal", running=False, encode=flag_kept_after_an_error)
fault("HidesCause", OneStep, "restored_after_failure",
      "the step raises RuntimeError without the original error as its cause: something went wrong",
      task_row=cause_hidden)

# -- meta-test, frozen parameters, saved state, memory ---------------------------------------------------------------


class AdaptsAcrossTasks(OneStep):
    """Starts the adaptation of each task from the result of the previous one."""

    def starting_point(self):
        cached = {} if self.encoder.training else getattr(self, "last", {})
        return {**super().starting_point(), **cached}

    def adapt(self, x, y, buffers):
        adapted = super().adapt(x, y, buffers)
        self.last = {name: value.detach().requires_grad_() for name, value in adapted.items()}
        return adapted


def predicted_with_graph(self, good, support_x, support_y, query_x):
    with self.mode(training=False):
        return self.classify(self.adapt(support_x, support_y, self.buffers()), {}, self.encode({}, {}, query_x))


def network_shared_with_the_copy(self, good, memo):
    duplicate = copy.copy(self)
    duplicate.homogenizers = copy.deepcopy(self.homogenizers, memo)
    memo.update({id(parameter): parameter for parameter in self.parameters()})
    return duplicate


def frozen_parameters_adapted(self, good):
    both = torch.nn.ModuleDict({"encoder": self.encoder, "head": self.head})
    frozen = {name: p.detach().requires_grad_() for name, p in both.named_parameters() if not p.requires_grad}
    return {**good(), **frozen}


class CachesParameters(OneStep):
    """Reads only at construction which parameters require gradients."""

    def __init__(self, encoder, head, homogenizers=None, **options):
        super().__init__(encoder, head, homogenizers, **options)
        self.cached = super().named_parameters()

    def named_parameters(self):
        cached = vars(self).get("cached")
        return super().named_parameters() if cached is None else {n: p.requires_grad_() for n, p in cached.items()}


def single_queries_normalized(self, good, support_x, support_y, query_x):  # by variances, which are undefined
    for buffer in self.encoder.buffers():
        query_x = query_x / (buffer.double().var() * 0) if buffer.numel() > 1 else query_x
    return good(support_x, support_y, query_x)


fails("scores_independent_of_batch",
      "score and loss of task 0, compared with those with the tasks in reversed order: off by")(AdaptsAcrossTasks)
fault("PredictsWithGraph", OneStep, "scores_independent_of_batch",
      "`predict` returns outputs that require grad: detach them", predict=predicted_with_graph)
fault("DetachesHalf", OneStep, "saliency",
      "the derivative of a prediction w.r.t. the queries is .*; finite differences give",
      adapted_outputs=lambda self, good, x, y, query_x: good(x, y, (query_x + query_x.detach()) / 2))
fault("SharesNetwork", OneStep, "resumes_from_copy",
      "after a copy was trained: the copy and the original share state: not exactly equal",
      __deepcopy__=network_shared_with_the_copy)
fault("AdaptsFrozenParameters", OneStep, "frozen_parameters",
      "with `encoder.0` frozen, the inner loop changes its `weight`", starting_point=frozen_parameters_adapted)
fails("frozen_parameters", "with `encoder.0` frozen after the learner was made, there are rows for encoder.0.weight")(
    CachesParameters)
fault("NormalizesSingleQueries", OneStep, "batch_norm",
      "with batch normalization, not finite after 1 steps: losses at meta-test",
      adapted_outputs=single_queries_normalized)
