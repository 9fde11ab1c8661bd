"""Properties of every learner beside those of the conformance kit: engines, derivatives, statistics, faulty tasks."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import DataError, OptionError
from gradhomog.registry import installed
from gradhomog.registry.options import option_parameters
from gradhomog.testing import parametrize_with_checks
from tests.adapters import checks
from tests.adapters.checks import FirstThreePixels, image_tasks, networks

LEARNERS = gradhomog.available("learners")
WITHOUT_HEAD = (
    "baseline", "baseline_pp", "metaoptnet", "protonet", "relationnet", "relationnet_ata", "relationnet_lrp", "skd",
)  # fmt: skip
RELATIONNETS = ("relationnet", "relationnet_ata", "relationnet_lrp")


VARIANTS = (
    "mamlpp(multi_step_steps=0)", "mamlpp(first_order_steps=9)", "mamlpp(step_norm=false)",
    'mamlpp(inner="adam", inner_lr=0.05)', 'mamlpp(learn_rates=false, inner="momentum")', 'imaml(adapt="head.*")',
    'imaml(adapt="encoder.*")', 'imaml(inner="adam", proximal=10.0)', 'reptile(inner="adam")', 'reptile(on="all")',
    "reptile(inner_batch=4)", "meta_transfer(pretrain_steps=1)", "skd(generation0_steps=0)",
    'relationnet(objective="softmax", hidden=9)',
)  # fmt: skip
"""Options that change how rows are computed."""
ON_MAPS = (
    "protonet()", "metaoptnet()", "baseline(input_shape=[1, 6, 6])", "relationnet(maps=true, input_shape=[1, 6, 6])",
    "relationnet_lrp(maps=true, input_shape=[1, 6, 6], hidden=9)", "meta_transfer(inner_steps=3)",
)  # fmt: skip
"""Learners of images `[1, 6, 6]`, with an encoder that returns maps."""
IMAGE_LEARNERS = ("skd",)  # they rotate their inputs


def tasks(text):
    if text in ON_MAPS:
        return checks.tasks(shape=(1, 6, 6))
    return image_tasks(checks.tasks()) if text.startswith(IMAGE_LEARNERS) else checks.tasks()


def make(text, homogenizers=None, nonfinite="raise", pair=None, norm=None, **options):
    pipe = gradhomog.pipeline(homogenizers or "none", nonfinite=nonfinite)
    if norm is not None:
        options["norm"] = norm
    if text.partition("(")[0] in ("baseline", "baseline_pp", *RELATIONNETS) and text not in ON_MAPS:
        options["input_shape"] = (3,)
    encoder, head = pair or (checks.image_networks if text in ON_MAPS else networks)(norm is not None)
    if text.startswith(IMAGE_LEARNERS):
        encoder = nn.Sequential(FirstThreePixels(), encoder)
    return gradhomog.learner(text, encoder, head, homogenizers=pipe, **options)


@pytest.mark.parametrize("norm", [None, "batch", "support", "frozen"])
@pytest.mark.parametrize("text", [*LEARNERS, *VARIANTS, *ON_MAPS])
def test_both_engines_give_the_same_rows(text, norm):
    loop, vmap = (make(text, norm=norm, engine=engine).rows(tasks(text)) for engine in ("loop", "vmap"))
    size = max(float(rows.abs().max()) for rows in loop.jacobian.values())
    assert size > 0
    for parameter, rows in loop.jacobian.items():  # Adam magnifies rounding of gradients that are 0
        assert float((rows - vmap.jacobian[parameter]).abs().max()) < (1e-6 if "adam" in text else 1e-9) * size, (
            parameter
        )
    torch.testing.assert_close(loop.losses, vmap.losses)
    torch.testing.assert_close(loop.features, vmap.features)
    torch.testing.assert_close(loop.feature_grads, vmap.feature_grads, rtol=1e-9, atol=1e-12)


class ComplexAndReal(nn.Module):
    """A product with a complex weight, and then a network."""

    def __init__(self, network, trained):
        super().__init__()
        weight = torch.eye(3, dtype=torch.complex128) + 0.1j
        self.weight, self.network = nn.Parameter(weight, requires_grad=trained), network

    def forward(self, x):
        return self.network((x.to(torch.complex128) @ self.weight).real)


@pytest.mark.parametrize("name", [name for name in LEARNERS if name not in IMAGE_LEARNERS])
def test_a_complex_parameter_is_refused_if_it_is_trained_and_accepted_if_it_is_frozen(name):
    encoder, head = networks()
    frozen = make(name, pair=(ComplexAndReal(encoder, False), head))
    assert all(rows.isfinite().all() for rows in frozen.rows(checks.tasks()).jacobian.values())
    if name != "meta_transfer":  # it trains factors of the encoder's weights
        with pytest.raises(OptionError, match=r"'encoder\.weight' is torch\.complex128.*torch\.view_as_real"):
            make(name, pair=(ComplexAndReal(encoder, True), head))


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize(
    "text",
    [
        "maml", "anil", "boil", "cavia", "meta_sgd", "mamlpp", "protonet", "metaoptnet", "relationnet", "baseline",
        "baseline_pp", "skd", VARIANTS[0], VARIANTS[4], *VARIANTS[-3:],
        *(text for text in ON_MAPS if "lrp" not in text),
    ],
)  # fmt: skip
def test_rows_are_derivatives_of_the_losses_for_all_statistics_of_normalization(text, norm):
    """Of learners without constants in their derivatives; the kit compares networks without normalization."""
    checks.assert_rows_match_finite_differences(make(text, norm=norm), tasks(text))


@pytest.mark.parametrize("norm", ["batch", "support"])
@pytest.mark.parametrize("name", LEARNERS)
def test_queries_are_independent_of_each_other_with_statistics_of_the_support_set(name, norm):
    task, learner = tasks(name)[0], make(name, norm=norm)
    together = learner.predict(task.support_x, task.support_y, task.query_x)
    parts = [learner.predict(task.support_x, task.support_y, part) for part in task.query_x.split(3)]
    assert torch.allclose(together, torch.cat(parts)) == (norm == "support")


@pytest.mark.slow
@parametrize_with_checks(
    [
        "mamlpp(multi_step_steps=5, first_order_steps=6, anneal_steps=7, norm='running', inner_steps=2)",
        "meta_transfer(pretrain_steps=2)", "skd(generation0_steps=2)", "reptile(inner_batch=2)",
        'reptile(keep_state=true, inner="adam")',
    ],
    kind="learners", only=["resumes_*"], fast=True,
)  # fmt: skip
def test_training_continues_exactly_before_and_after_the_steps_at_which_a_learner_changes(check):
    """The kit continues after four of eight steps; `meta_transfer` and `skd` change between them, too."""
    check()


@pytest.mark.parametrize("name", LEARNERS)
def test_bfloat16_rows_are_close_to_those_of_float32(name):
    rows, batch = [], tasks(name)
    batch = replace(batch, support_x=batch.support_x.float(), query_x=batch.query_x.float())
    for autocast in (None, "bfloat16"):
        learner = make(name, autocast=autocast)
        for module in (learner.encoder, learner.head, learner.extra_modules):
            module.float()
        rows.append(learner.rows(batch))
    torch.testing.assert_close(rows[1].losses, rows[0].losses, rtol=0.05, atol=0.05)
    assert all(block.isfinite().all() for block in rows[1].jacobian.values())


class WithUnusedLayer(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.used, self.unused = encoder, nn.Linear(2, 2).double()

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("options", [{"engine": "loop"}, {"engine": "vmap"}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("name", LEARNERS)
def test_parameters_that_no_loss_depends_on_have_no_gradient_and_are_not_decayed(name, options):
    # AdamW moved the head of ProtoNet by 0.027 in a step, because the head's gradient was zero instead of None.
    encoder, head = networks()
    learner = make(name, pair=(WithUnusedLayer(encoder), head), **options)
    outer = torch.optim.AdamW(learner.parameters(), lr=0.1, weight_decay=0.5)
    before = {key: p.detach().clone() for key, p in learner.named_parameters().items()}
    for _ in range(2):
        learner.step(tasks(name), outer)
    after = learner.named_parameters()
    unused = {key for key, p in after.items() if p.grad is None}
    expected = {key for key in after if "unused" in key or (key.startswith("head.") and name in WITHOUT_HEAD)}
    assert unused == (set() if name == "alfa" else expected)  # ALFA generates rates from the means of all parameters
    for key, parameter in after.items():
        assert torch.equal(parameter, before[key]) == (key in unused), key


graph_calls: list[int] = []


def counting(graph, inputs):
    """Backend of `torch.compile` that runs graphs as they are, and counts the calls of each in `graph_calls`."""
    graph_calls.append(0)
    index = len(graph_calls) - 1

    def run(*arguments):
        graph_calls[index] += 1
        return graph(*arguments)

    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
@pytest.mark.parametrize("name", [name for name in LEARNERS if name not in ("fomaml", "boil")])  # options of MAML
def test_compiled_rows_are_one_graph_that_runs_in_every_step(name):
    # An operation in each call of the network broke the graph, and PyTorch ran all of it uncompiled, in silence.
    if "counting" not in torch.compiler.list_backends():
        torch._dynamo.register_backend(counting)
    graph_calls.clear()
    few = {"inner_steps": 2, "cg_steps": 2}
    options = {option: few[option] for option in few.keys() & options_of(name)}
    learners = [make(name, engine="loop", **options), make(name, compile="counting", **options)]
    outer = [torch.optim.SGD(learner.parameters(), lr=0.1) for learner in learners]
    for _ in range(3):
        reports = [learner.step(tasks(name), sgd) for learner, sgd in zip(learners, outer, strict=True)]
        torch.testing.assert_close(reports[0].losses, reports[1].losses, rtol=1e-9, atol=1e-12)
        learners[1].evaluate(tasks(name))
    assert graph_calls == [6 if name == "sharp_maml" else 3]  # it computes rows at two points
    torch.testing.assert_close(learners[0].parameters(), learners[1].parameters(), rtol=1e-9, atol=1e-12)


class ReadsValue(nn.Module):
    def forward(self, x):
        return x if torch.is_grad_enabled() and len(str(x)) else 2 * x


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
def test_a_network_that_cannot_be_compiled_raises_with_the_place():
    encoder, head = networks()
    learner = make("maml", pair=(nn.Sequential(ReadsValue(), encoder), head), compile="eager")
    with pytest.raises(OptionError, match=r"compile='eager'.*test_every_learner\.py.*in forward.*compile=False"):
        learner.rows(checks.tasks())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
def test_batches_of_more_shapes_than_pytorch_compiles_raise():
    learner = make("protonet", compile="eager")
    with torch._dynamo.config.patch(recompile_limit=1):
        learner.rows(checks.tasks(3))
        with pytest.raises(OptionError, match="shapes of batches must be few"):
            learner.rows(checks.tasks(4))


@pytest.mark.parametrize("name", [*LEARNERS, "skd(generation0_steps=0)"])
def test_tasks_of_one_class_or_of_equal_inputs_and_dead_units_have_finite_rows(name):
    batch = tasks(name)
    one = replace(batch, support_y=0 * batch.support_y, query_y=0 * batch.query_y)
    equal = replace(batch, support_x=torch.ones_like(batch.support_x), query_x=torch.ones_like(batch.query_x))
    dead = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).double()
    nn.init.constant_(dead[0].bias, -1e6)
    inner = {} if "inner" not in options_of(name.partition("(")[0]) else {"inner": "adam"}
    found = [make(name).rows(one), make(name).rows(equal)]
    found.append(make(name, pair=(dead, nn.Linear(4, 3).double()), **inner).rows(batch))
    for rows in found:
        assert all(bool(value.isfinite().all()) for value in [rows.losses, *rows.jacobian.values()])


def options_of(name):
    return set(option_parameters(installed().load("learners", name)[1]))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_head_with_too_few_outputs_or_a_label_without_one_raises_with_both_numbers(name, engine):
    # Learners without a loss on the support set ignored such a support example.
    batch = tasks(name)
    unknown = replace(batch, support_y=batch.support_y.clone())
    unknown.support_y[0, 0] = 9
    cases = [(make(name, engine=engine), unknown, "10 outputs, as the largest class index is 9; got 3")]
    if name not in RELATIONNETS:  # their outputs are not the head's
        narrow = make(name, pair=(networks()[0], nn.Linear(4, 2).double()), engine=engine)
        cases.append((narrow, batch, "3 outputs, as the largest class index is 2; got 2. Use a head with 3 outputs"))
    for learner, given, message in cases:
        for call in (learner.rows, learner.evaluate):
            with pytest.raises(DataError, match=f"`head` must have at least {message}"):
                call(given)
