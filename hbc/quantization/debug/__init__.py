"""Where a quantised PyTorch model loses accuracy, and what to do about it.

    from hbc.quantization import debug
    print(debug.compare(float_model, prepared, (image,)))        # similarity per layer
    debug.advise(prepared, loader).to_html("advice.html")

Every function returns a report: `.rows` for programs, `.table()` for rich, `.to_csv(path)`, `.to_html(path)`;
`write_page(path, reports)` puts several on one page.
"""

from __future__ import annotations

import importlib.util

from hbc.debug import Report, write_page
from hbc.diagnostics import NoTorch, QuantizationError

if importlib.util.find_spec("torch") is None:  # before the imports below say less
    raise QuantizationError(NoTorch())


from .advising import AdviceReport, AdviceRow, Int16Setter, advise
from .bad_cases import CaseRow, CasesReport, bad_cases
from .calls import CallRow, called_counts
from .comparing import LayerRow, compare, ranked
from .feature_maps import FeatureRow, statistics
from .qconfigs import QConfigRow, check_qconfig
from .sensitive import SensitivityReport, SensitivityRow, sensitivity
from .stepwise import PartRow, kept_float, lut_only, stepwise, tables_of
from .unfused import UnfusedRow, check_unfused
from .weights import WeightRow, compare_weights
from .whole import profile

__all__ = [
    "AdviceReport",
    "AdviceRow",
    "CallRow",
    "CaseRow",
    "CasesReport",
    "FeatureRow",
    "Int16Setter",
    "LayerRow",
    "PartRow",
    "QConfigRow",
    "Report",
    "SensitivityReport",
    "SensitivityRow",
    "UnfusedRow",
    "WeightRow",
    "advise",
    "bad_cases",
    "called_counts",
    "check_qconfig",
    "check_unfused",
    "compare",
    "compare_weights",
    "kept_float",
    "lut_only",
    "profile",
    "ranked",
    "sensitivity",
    "statistics",
    "stepwise",
    "tables_of",
    "write_page",
]
