"""SKD: classification with self-supervision by rotations, then distillation from a frozen copy."""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gradhomog import DataError, LearnerSpec, Task, TaskBatch, hookimpl
from gradhomog_adapters._classifiers import ClassifierLearner, class_count, make_linear, normalize_rows
from gradhomog_adapters._metric import MetricLearner, at_least_float32
from gradhomog_adapters._network import Parameters, StepCounter
from gradhomog_adapters._network_mode import SupportStatistics, norm_policy
from gradhomog_adapters._option_types import Count, CountOrZero, NonNegative, Positive
from gradhomog_adapters.few_shot import LearnerOptions, Query, Support, Tasks

# Largest entry of the gradient; scikit-learn's default is 1e-4. Much below 1e-7, the line search compares values of the
# objective that differ by rounding errors only.
GRADIENT_TOLERANCE = 1e-6
MAX_ITERATIONS = 1000  # as in the code of SKD; 10 to 30 suffice for unit vectors


def fit_logistic_regression(x: Tensor, members: Tensor, regularization: float) -> tuple[Tensor, Tensor]:
    """Minimize Σ_i −log softmax(W x_i + b)_{y_i} + λ/2 ‖W‖² by L-BFGS, in float64.

    The problem is convex, and W is unique. Biases have no penalty; their sum is 0, as at the start. A class without
    examples has no part in the softmax. With one class only, W = 0 and b = 0.

    Args:
        x: `[n, features]`.
        members: one-hot labels y `[n, classes]`.
        regularization: λ > 0; 1/C of scikit-learn's `LogisticRegression`.

    Returns:
        W `[classes, features]` and b `[classes]`, float64, without a graph. The error of W is about 1e-6/λ.
    """
    x, members = x.detach().double(), members.detach().double()
    weights = x.new_zeros(members.shape[1], x.shape[1], requires_grad=True)
    bias = x.new_zeros(members.shape[1], requires_grad=True)
    absent = members.sum(0) == 0
    labels = members.argmax(1)
    solver = torch.optim.LBFGS(
        [weights, bias], max_iter=MAX_ITERATIONS, tolerance_grad=GRADIENT_TOLERANCE, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def objective() -> Tensor:
        solver.zero_grad()
        outputs = (x @ weights.T + bias).masked_fill(absent, -torch.inf)
        value = torch.nn.functional.cross_entropy(outputs, labels, reduction="sum")
        value = value + regularization / 2 * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        solver.step(objective)  # type: ignore[no-untyped-call]
    return weights.detach(), bias.detach()


def rotate_images(x: Tensor, turns: Sequence[int]) -> Tensor:
    """Concatenate copies of images `[n, C, s, s]`, each rotated by a number of quarter turns: `[len(turns) · n, …]`.

    Raises:
        DataError: the inputs are not square images.
    """
    if x.dim() != 4 or x.shape[-1] != x.shape[-2]:
        raise DataError(
            "images of tasks must be square, [channels, size, size], because they are rotated by 90 degrees; got "
            f"inputs of shape {list(x.shape[1:])}. Resize the images."
        )
    return torch.cat([torch.rot90(x, turn, (-2, -1)) for turn in turns])


def rotation_loss(outputs: Tensor) -> Tensor:
    """Mean binary cross entropy of four outputs, each of which predicts if an image has been rotated by r · 90 degrees.

    Args:
        outputs: `[4 n, 4]`, for n images that are not rotated, then for those rotated once, twice and three times.
    """
    targets = torch.eye(4, dtype=outputs.dtype, device=outputs.device).repeat_interleave(len(outputs) // 4, 0)
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · mean KL(softmax(teacher/T) ‖ softmax(student/T)), for outputs `[n, classes]`.

    T² makes gradients independent of T to first order, as in Hinton et al. 2015, arXiv 1503.02531, section 2.
    """
    log_p, log_q = (torch.log_softmax(outputs / temperature, 1) for outputs in (teacher, student))
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(1).mean()


def mean_distance(one: Tensor, two: Tensor) -> Tensor:
    """Mean ‖one_i − two_i‖ over rows; the derivative of equal rows is zero."""
    distance: Tensor = torch.linalg.vector_norm(one - two, dim=1).mean()
    return distance


class SKD(ClassifierLearner, MetricLearner):
    """Trains an encoder to classify images and their rotations, then to keep its outputs and ignore rotations.

    z(x) = A f(x) + b, outputs for all training classes;  x^r: image x rotated by r · 90 degrees
    generation 0: row_i = ∇ mean over x in task i and r = 0, …, 3 of −log softmax(z(x^r))_class + γ BCE(V z(x^r), r)
    generation 1: row_i = ∇ mean over x in task i of T² KL(softmax(z⁰(x)/T) ‖ softmax(z(x)/T)) + β ‖z(x²) − z(x)‖
    meta-test: logistic regression on f(support set), scaled to length one, with f fixed

    z⁰ is z at the end of generation 0, the teacher. The images of a task are those of support and query set.

    Args:
        encoder, head, homogenizers: see `Learner`. Only the number of outputs of the head is used, the number of
            classes of a task; the head is not trained and its rows are zero.
        loss: see `Learner`, for z(x_r) in generation 0.
        classes, input_shape: see `Baseline`.
        generation0_steps: ≥ 0, number of meta-steps of generation 0; then the teacher is copied, and the student
            continues from the same parameters. 0: the initial network is the teacher. None: generation 0 only, without
            a teacher.
        rotation_weight: γ ≥ 0.
        temperature: T > 0.
        distance_weight: β ≥ 0.
        regularization: λ > 0 in Σ_support −log softmax(W f + c)_class + λ/2 ‖W‖² at meta-test.
        engine, compile, autocast, norm, recompute: see `Execution`. All rotated images are one batch for
            batch normalization, with the support set; queries are another.

    (A, b) is `learner.classifier`, and V, a linear layer from classes to rotations, `learner.rotation`, whose rows are
    zero in generation 1. BCE is the mean over the four outputs. The teacher is `learner.teacher`, without rows; it uses
    `norm` with separate statistics. The number of completed steps is state, `learner.count`. Images must be
    square. Outputs in training are those of the task's own classes. Rows are exact. Regression tasks cause a DataError.
    A `transform` acts on the queries that are not rotated; homogenizers in the encoder act on all images, but not on
    the teacher. At meta-test a class without a support example has output −∞. Cost per task: four times that of
    `baseline`; in generation 1 twice, and a forward pass of the teacher. Memory: a second network.

    Source: Rajasegaran et al. 2020, arXiv 2006.09785, section 3, and their code, whose γ and β are the defaults.

    Deviations: (1) batches are tasks, because homogenizers need rows; (2) both generations use one outer optimizer and
    rate: theirs restart, at 0.05 and 0.001; (3) running statistics of batch normalization are not kept, see `norm`;
    their teacher uses them; (4) their code for generation 1 does not run, because the images that it compares are
    commented out: those rotated by 180 degrees, as here and in LibFewShot; both divide β by 3; (5) T = 4 is that of
    LibFewShot: the default of their script is 2; (6) support sets are not augmented at meta-test; five equal copies,
    the number of their augmented ones, correspond to λ = 0.2.

    >>> import torch
    >>> from gradhomog import Task
    >>> _ = torch.manual_seed(0)
    >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    >>> learner = SKD(encoder, torch.nn.Linear(16, 2), classes=6, generation0_steps=1)
    >>> task = Task(*[torch.rand(2, 1, 4, 4), torch.tensor([0, 1])] * 2, classes=torch.tensor([5, 2]))
    >>> outer = torch.optim.SGD(learner.parameters(), lr=0.1)
    >>> learner.generation, learner.step([task], outer).losses.shape, learner.generation
    (0, torch.Size([1]), 1)
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        classes: Count | None = None,
        input_shape: Sequence[int] | None = None,
        generation0_steps: CountOrZero | None = None,
        rotation_weight: NonNegative = 2.0,
        temperature: Positive = 4.0,
        distance_weight: NonNegative = 0.1,
        regularization: Positive = 1.0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        self.classes, self.generation0_steps = classes, generation0_steps
        self.rotation_weight, self.distance_weight = rotation_weight, distance_weight
        self.temperature, self.regularization = temperature, regularization
        self._teacher_statistics, self._distills = SupportStatistics(()), False
        self.register_classifier(input_shape)
        self.register_module("rotation", make_linear(class_count(classes, head), 4))
        if generation0_steps is not None:
            self.register_module("count", StepCounter())
            parts = OrderedDict(encoder=encoder, flatten=nn.Flatten(), classifier=self.extra_modules["classifier"])
            self.register_module("teacher", copy.deepcopy(nn.Sequential(parts)).requires_grad_(False))

    # -- generations -------------------------------------------------------------------------------------------------

    generation0_steps: CountOrZero | None = None  # the base class enters `mode` before it is set

    @property
    def generation(self) -> int:
        """0 during the first `generation0_steps` meta-steps, then 1."""
        if self.generation0_steps is None:
            return 0
        return int(self.completed_steps >= self.generation0_steps)

    def on_step_end(self) -> None:
        super().on_step_end()
        if self.generation0_steps is not None and self.completed_steps == self.generation0_steps:
            teacher = self.extra_modules["teacher"]
            teacher.get_submodule("encoder").load_state_dict(self.encoder.state_dict())
            teacher.get_submodule("classifier").load_state_dict(self.extra_modules["classifier"].state_dict())

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        with super().mode(training):
            self._distills = training and self.generation == 1
            teacher = [self.extra_modules["teacher"].eval()] if "teacher" in self.extra_modules else []
            with norm_policy(teacher, self.execution.norm) as self._teacher_statistics:
                yield

    # -- rows and meta-test ------------------------------------------------------------------------------------------

    def prepared(self, tasks: Tasks) -> Tasks:
        """Add the rotated images to the support set; replace labels by indices of classes or outputs of the teacher."""
        if isinstance(tasks, TaskBatch):
            return TaskBatch.stack([self.prepared(task) for task in tasks])  # type: ignore[return-value]
        found = super().prepared(tasks)
        images = torch.cat([tasks.support_x, tasks.query_x])
        turns = [2] if self._distills else [1, 2, 3]
        if self._distills:
            found = self._with_teacher_outputs(found)
        return replace(found, support_x=torch.cat([tasks.support_x, rotate_images(images, turns)]))

    def _with_teacher_outputs(self, task: Task) -> Task:
        teacher = self.extra_modules["teacher"]
        with torch.no_grad():
            with self._teacher_statistics.record() as statistics:
                support = at_least_float32(teacher(task.support_x))
            with self._teacher_statistics.replay(statistics):
                query = at_least_float32(teacher(task.query_x))
        return replace(task, support_y=support, query_y=query)

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        if support.order != "none":
            return {**parameters, "task.features": self.support_features(parameters, support).flatten(1)}
        task = self.class_tensors(parameters, support)
        features = normalize_rows(task["task.features"].flatten(1))
        weights, bias = fit_logistic_regression(features, task["task.members"], self.regularization)
        return {**parameters, **task, "task.weights": weights.to(features), "task.bias": bias.to(features)}

    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
        assert query.y is not None
        targets = torch.cat([query.support.y, query.y])
        support, rotated = parameters["task.features"].tensor_split([len(query.support.y)])
        outputs = self.classifier_outputs(parameters, torch.cat([support, query.features, rotated]))
        plain = outputs[: len(targets)]
        if self._distills:
            loss = distillation_loss(plain, targets, self.temperature)
            loss = loss + self.distance_weight * mean_distance(outputs[len(targets) :], plain)
        else:
            turns = at_least_float32(self.call_extra_module(parameters, "rotation", outputs))
            loss = self.loss(outputs, targets.repeat(4)) + self.rotation_weight * rotation_loss(turns)
        return loss, plain[len(support) :]

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        """Outputs of the logistic regression, at meta-test."""
        features = normalize_rows(query.features)
        outputs = nn.functional.linear(features, parameters["task.weights"], parameters["task.bias"])
        return self.mask_absent_classes(parameters, outputs)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=SKD,
        summary="classifies all training classes and rotations, then distills from a frozen copy",
        reference="Rajasegaran et al. 2020, arXiv 2006.09785",
        traits={"exact_rows"},
    )
