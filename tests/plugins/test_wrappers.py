"""Methods that wrap a method, CR-MOGM and tracked, against averages by hand, conflictfree, and networkx."""

import networkx
import pytest
import torch
from conflictfree.grad_operator import ConFIGOperator
from conflictfree.momentum_operator import PseudoMomentumOperator

import gradhomog
from gradhomog import Homogenizer, OptionError, TaskKey
from gradhomog.step.step import make_step
from tests.plugins.rows import normal


def test_of_a_mixing_matrix_the_column_sums_are_averaged():
    steps = [normal(3, 4, seed=seed) for seed in range(4)]
    pipe, alone = gradhomog.pipeline("cr_mogm(method='pcgrad(seed=5)')"), gradhomog.pipeline("pcgrad(seed=5)")
    average = None
    for rows in steps:
        current = alone.homogenize(rows).weights
        average = current if average is None else 0.9 * average + 0.1 * current
        torch.testing.assert_close(pipe.combine(rows), average @ rows / 3)


@pytest.mark.parametrize("wrapper", ["cr_mogm", "tracked"])
def test_the_state_of_another_method_raises(wrapper):
    saved = gradhomog.pipeline(f"{wrapper}(method='mgda')").state_dict()
    with pytest.raises(gradhomog.ConfigError, match=r"`method` must be .*; got 'mgda'\. It was saved"):
        gradhomog.pipeline(f"{wrapper}(method='cagrad')").load_state_dict(saved)


def step_of(pipe, rows, slots, losses=None, names=None):
    """The direction of one step in which only some tasks are present: of a row and its slot, or of several."""
    rows, slots = (rows[None], [slots]) if rows.dim() == 1 else (rows, [*slots])
    pending = pipe.compute(make_step(rows, losses, slots=slots, domains=names and [*names]))
    pending.commit()
    return pending.result.direction[""]


class Averages:
    """Bias-corrected averages by hand: of the moments m ← β m + (1 − β) g, m / (1 − β^t)."""

    def __init__(self, beta):
        self.beta, self.moments, self.counts = beta, {}, {}

    def add(self, key, row):
        self.moments[key] = self.beta * self.moments.get(key, 0) + (1 - self.beta) * row
        self.counts[key] = self.counts.get(key, 0) + 1

    def rows(self):
        found = [self.moments[key] / (1 - self.beta ** self.counts[key]) for key in sorted(self.moments)]
        return torch.stack(found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("method", ["upgrad", "and_mask"])  # the first mixes rows, the second replaces them
def test_the_direction_is_that_of_the_method_for_averages_by_hand(method, beta, dtype):
    pipe, averages = gradhomog.pipeline(f"tracked(method='{method}', average={beta})"), Averages(beta)
    for number, rows in enumerate(normal(12, 3, 8)):
        [slot] = pipe.choose(3)
        assert slot == number % 3
        averages.add(slot, rows[slot])
        expected = gradhomog.pipeline(method).combine(averages.rows())
        rounding = 1e-10 if dtype == torch.float64 else 1e-5
        found = step_of(pipe, rows[slot].to(dtype), slot)
        torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=rounding)


class Recorded(ConFIGOperator):
    """ConFIG of the package conflictfree, which records its last result."""

    def calculate_gradient(self, gradients, losses=None):
        self.last = super().calculate_gradient(gradients, losses)
        return self.last


@pytest.fixture
def float64():
    """The default dtype: averages and weights of conflictfree have no other."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("tasks", [2, 3])
def test_config_on_averages_is_m_config_of_conflictfree(tasks):
    recorded = Recorded()
    theirs = PseudoMomentumOperator(tasks, gradient_operator=recorded)
    ours = gradhomog.pipeline("tracked(method='config(scale=\"paper\")')")
    first, second, counted = 0.0, 0.0, 0
    for number, rows in enumerate(normal(4 * tasks, tasks, 7)):
        slot = number % tasks
        assert ours.choose(tasks) == (slot,)
        found = step_of(ours, rows[slot], slot)
        update = theirs.calculate_gradient([slot], [rows[slot]])
        if number < tasks - 1:
            assert not update.any()  # theirs waits until every task has a row
            continue
        torch.testing.assert_close(found, recorded.last, rtol=1e-8, atol=1e-10)
        # Its division by a second moment of pseudo gradients, whose bias-corrected average is the direction.
        counted += 1
        moment = found * (1 - 0.9**counted)
        pseudo = (moment - 0.9 * first) / (1 - 0.9)
        first, second = moment, 0.999 * second + 0.001 * pseudo**2
        expected = found / ((second / (1 - 0.999**counted)).sqrt() + 1e-8)
        torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-8)


def test_several_rows_per_step_are_chosen_in_turn_and_averaged():
    pipe, averages = gradhomog.pipeline("tracked(method='pcgrad(order=\"fixed\")', rows=2)"), Averages(0.9)
    order = []
    for rows in normal(5, 3, 6):
        chosen = pipe.choose(3)
        order.append(chosen)
        for slot in chosen:
            averages.add(slot, rows[slot])
        expected = gradhomog.pipeline("pcgrad(order='fixed')").combine(averages.rows())
        torch.testing.assert_close(step_of(pipe, rows[list(chosen)], chosen), expected)
    assert order == [(0, 1), (0, 2), (1, 2), (0, 1), (0, 2)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_are_kept_for_every_steps_and_the_direction_follows_the_averages(dtype):
    pipe, averages = gradhomog.pipeline("tracked(method='imtl_g', every=3)"), Averages(0.9)
    weights = None
    for number, rows in enumerate(normal(15, 3, 6, seed=1)):
        [slot] = pipe.choose(3)
        averages.add(slot, rows[slot])
        if number < 3 or (number - 2) % 3 == 0:  # a new task has no weight yet
            weights = gradhomog.pipeline("imtl_g").homogenize(averages.rows()).weights
        expected = weights @ averages.rows() / len(weights)
        found = step_of(pipe, rows[slot].to(dtype), slot)
        rounding = 1e-10 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=rounding)


def test_a_method_that_reads_losses_receives_the_last_loss_of_each_task():
    pipe, averages = gradhomog.pipeline("tracked(method=\"mgda(normalize='loss')\")"), Averages(0.9)
    losses = torch.rand(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    last = {}
    for number, rows in enumerate(normal(6, 2, 5)):
        slot = number % 2
        averages.add(slot, rows[slot])
        last[slot] = float(losses[number, slot])
        found = step_of(pipe, rows[slot], slot, losses[number, slot][None])
        expected = gradhomog.pipeline("mgda(normalize='loss')").combine(
            averages.rows(), [last[s] for s in sorted(last)]
        )
        torch.testing.assert_close(found, expected)


class Scheduler:
    """SON-GOKU by hand: averages of rows, the coloring of networkx, and the group with the oldest rows in turn."""

    def __init__(self, tasks, beta, every):
        self.tasks, self.every, self.averages = tasks, every, Averages(beta)
        self.groups, self.seen = {}, {}

    def chosen(self):
        oldest = min(range(self.tasks), key=lambda task: (self.seen.get(task, -1), self.averages.counts.get(task, 0)))
        return tuple(task for task in range(self.tasks) if self.groups.get(task) == self.groups.get(oldest))

    def update(self, number, rows):
        for task in self.chosen():
            self.averages.add(task, rows[task])
            self.seen[task] = number
        if number % self.every == 0:
            averages = self.averages.rows()
            products = averages @ averages.T
            graph = networkx.Graph()
            graph.add_nodes_from(range(self.tasks))
            graph.add_edges_from((i, j) for i in range(self.tasks) for j in range(i) if products[i, j] < 0)
            self.groups = networkx.greedy_color(graph, strategy="largest_first")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("method", ["upgrad", "trimmed_mean(trim=0)"])  # the second replaces the rows
def test_groups_without_conflict_take_turns_and_a_step_is_that_of_the_method_for_the_rows_of_one(method, every, dtype):
    pipe = gradhomog.pipeline(f"tracked(method='{method}', order='compatible', average=0.8, every={every})")
    expected, numbers = Scheduler(6, 0.8, every), []
    for number, rows in enumerate(normal(20, 6, 9, seed=2) + normal(6, 9, seed=3)):
        chosen = list(pipe.choose(6))
        assert tuple(chosen) == expected.chosen()
        found = step_of(pipe, rows[chosen].to(dtype), chosen).double()
        torch.testing.assert_close(found, gradhomog.pipeline(method).combine(rows[chosen]), rtol=1e-4, atol=1e-5)
        expected.update(number, rows)
        numbers.append(len(chosen))
    assert numbers[0] == 6  # new tasks are one group
    assert 1 < max(numbers[1:]) < 6


def test_a_new_task_is_a_group_of_its_own_once_and_tasks_without_conflict_are_differentiated_together():
    pipe, rows = gradhomog.pipeline("tracked(order='compatible', every=50)"), torch.eye(3, 4)
    for names, expected in [("ab", ["a", "b"]), ("abc", ["c"]), ("abc", ["a", "b", "c"]), ("abc", ["a", "b", "c"])]:
        chosen = pipe.choose([*names])
        assert list(chosen) == expected
        index = [names.index(name) for name in chosen]
        step_of(pipe, rows[index], index, names=chosen)


def test_all_tasks_of_one_domain_are_chosen_and_their_mean_row_is_averaged():
    pipe, averages = gradhomog.pipeline("tracked(method='upgrad')"), Averages(0.9)
    keys = [TaskKey(0, "b"), TaskKey(1, "a"), TaskKey(2, "b")]
    for number, rows in enumerate(normal(4, 3, 6)):
        chosen = pipe.choose(keys)
        assert chosen == ((0, 2) if number % 2 == 0 else (1,))
        averages.add(number % 2, rows[list(chosen)].mean(0))
        found = step_of(pipe, rows[list(chosen)], chosen, names=[keys[place].domain for place in chosen])
        torch.testing.assert_close(found, gradhomog.pipeline("upgrad").combine(averages.rows()))


def test_a_domain_that_is_absent_from_a_batch_is_chosen_when_it_returns():
    pipe = gradhomog.pipeline("tracked")
    rows = torch.eye(4)
    for names, expected in [("abc", "a"), ("abc", "b"), ("ab", "a"), ("abc", "c"), ("bc", "b"), ("abc", "a")]:
        assert pipe.choose(list(names)) == (expected,)
        pipe.combine(rows[:1], domains=[expected])


def test_a_task_whose_row_is_too_old_is_left_out_and_begins_anew_when_it_returns():
    pipe = gradhomog.pipeline("tracked(method='static', forget=4, every=4)")
    a, b = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    step_of(pipe, a, 0)
    for number in range(1, 6):
        expected = (a + b) / 2 if number <= 4 else b  # the row of task 0 is older than four steps in step 5
        torch.testing.assert_close(step_of(pipe, b, 1), expected)
    torch.testing.assert_close(step_of(pipe, 3 * a, 0), (3 * a + b) / 2)


def test_the_method_receives_a_separate_slot_for_each_domain():
    # GradNorm keeps a weight per slot. Both domains have position 0 in their batches.
    named, numbered = (gradhomog.pipeline("tracked(method='gradnorm(lr=0.1)')") for _ in range(2))
    for number, rows in enumerate(normal(8, 2, 5)):
        row, loss = rows[number % 2], [1.0 + number]
        expected = step_of(numbered, row, number % 2, loss)
        torch.testing.assert_close(step_of(named, row, 0, loss, "ab"[number % 2]), expected)


def test_weights_by_slot_of_the_method_belong_to_positions_among_all_losses():
    pipe = gradhomog.pipeline("tracked(method='static(weights=[1, 3])')")
    a, b = torch.eye(2)
    step_of(pipe, b, 1, names="b")
    torch.testing.assert_close(step_of(pipe, a, 0, names="a"), torch.tensor([0.25, 0.75]))


@pytest.mark.parametrize("rows", [1, 3])
def test_domains_that_never_return_are_left_out(rows):
    pipe = gradhomog.pipeline("tracked(method='static', forget=4)")
    for number in range(12):
        names = [f"{number}, {index}" for index in range(rows)]
        pipe.combine(torch.ones(rows, 2), domains=names)
    assert len(pipe.state_dict()["0:tracked"]["averages"]) == 5 * rows


def test_a_turn_of_all_tasks_must_not_be_longer_than_rows_are_kept():
    assert gradhomog.pipeline("tracked(forget=3, rows=2)").choose(6) == (0, 1)
    with pytest.raises(OptionError, match="`forget` must be at least 4, the steps in which 7 tasks have their turn"):
        gradhomog.pipeline("tracked(forget=3, rows=2)").choose(7)


@pytest.mark.parametrize(("saved", "loaded"), [({}, {"every": 4}), ({"every": 4}, {})])
def test_a_state_may_be_loaded_with_other_options(saved, loaded):
    first, second = gradhomog.pipeline([("tracked", saved)]), gradhomog.pipeline([("tracked", loaded)])
    rows = normal(1, 2, 5)[0]
    for slot in range(2):
        step_of(first, rows[slot], slot)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        [slot] = second.choose(2)
        torch.testing.assert_close(step_of(second, rows[slot], slot), gradhomog.pipeline("upgrad").combine(rows))


def test_a_policy_that_drops_tasks_raises():
    with pytest.raises(OptionError, match="`nonfinite` must be 'raise' with tracked"):
        gradhomog.pipeline("tracked", nonfinite="drop")


def test_a_homogenizer_must_choose_valid_positions():
    class Wrong(Homogenizer):
        def choose(self, keys):
            return [len(keys)]

    with pytest.raises(
        gradhomog.PluginRunError, match="must return from `choose` at least one of the positions 0 to 2"
    ):
        gradhomog.pipeline([Wrong()]).choose(3)


@pytest.mark.parametrize("tasks", [0, True, "ab", ["a", 1]])
def test_choose_requires_a_number_or_names(tasks):
    with pytest.raises(OptionError, match="`tasks` must be the number of tasks or their names"):
        gradhomog.pipeline("tracked").choose(tasks)


def test_without_tracked_all_tasks_are_chosen():
    assert gradhomog.pipeline("pcgrad").choose(3) == (0, 1, 2)
    assert gradhomog.pipeline("none").choose(["a", "b"]) == ("a", "b")
    with pytest.raises(OptionError, match="`tasks` must be different names; got \\['a', 'a'\\]"):
        gradhomog.pipeline("none").choose(["a", "a"])
