"""Average the outputs of one learner over several of its saved states."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.learners.learner import Learner
from gradhomog.learners.results import Evaluation
from gradhomog.learners.scoring import score_tasks
from gradhomog.learners.tasks import Task, TaskBatch


class Ensemble:
    """Adapts copies of a learner with different saved states to a task, and predicts the mean of their outputs.

    outputs(x) = 1/E Σ_e outputs_e(x). The outputs of classifiers are logits, not probabilities.

    Args:
        learner: the learner that the states belong to; it is copied and not changed.
        states: E ≥ 1 of its `state_dict`s, such as the best checkpoints by validation.

    Cost: E copies of the learner, and E adaptations of each task.

    Source: Antoniou et al. 2019 (MAML++), arXiv 1810.09502, section 5: the five best models by validation; logits are
    averaged as in the authors' code.

    Raises:
        OptionError: there is no state. ConfigError: a state belongs to another learner.

    >>> import torch
    >>> from gradhomog_adapters.maml import MAML
    >>> learner = MAML(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1))
    >>> both = Ensemble(learner, [learner.state_dict(), learner.state_dict()])
    >>> x = torch.linspace(-1, 1, 5)[:, None]
    >>> torch.equal(both.predict(x, x.sin(), x), learner.predict(x, x.sin(), x))
    True
    """

    def __init__(self, learner: Learner, states: Sequence[Mapping[str, Any]]) -> None:
        if not states:
            raise OptionError("`states` must contain at least one state of the learner; got none.")
        self.members: list[Learner] = []
        for state in states:
            member = copy.deepcopy(learner)
            member.load_state_dict(state)
            self.members.append(member)

    def predict(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        """Return the mean of the members' outputs; arguments as in `Learner.predict`."""
        return torch.stack([member.predict(support_x, support_y, query_x) for member in self.members]).mean(0)

    def evaluate(self, tasks: TaskBatch | Iterable[Task]) -> Evaluation:
        """Return scores and losses of the mean outputs, as `Learner.evaluate`."""

        def compute(task: Task) -> tuple[Tensor, float]:
            outputs = self.predict(task.support_x, task.support_y, task.query_x)
            return outputs, float(self.members[0].loss(outputs, task.query_y))

        return score_tasks(tasks, compute)
