"""The public names, each once; `__init__.py` imports them from here at their first use."""

from .execution.comparison import ComparisonResult as ComparisonResult
from .execution.comparison import compare as compare
from .results.records import records as records
