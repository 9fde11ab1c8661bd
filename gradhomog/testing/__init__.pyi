"""The public names, each once; `__init__.py` imports them from here at their first use."""

from .check_results import Check as Check
from .check_results import CheckFailure as CheckFailure
from .check_results import CheckReport as CheckReport
from .check_results import CheckResult as CheckResult
from .check_results import Outcome as Outcome
from .domain_check import check_domain as check_domain
from .kits import check_homogenizer as check_homogenizer
from .kits import check_learner as check_learner
from .kits import checks as checks
from .parametrization import parametrize_with_checks as parametrize_with_checks
from .property_search import jacobians as jacobians
