"""Any two stages of one model, compared tensor by tensor: where an error starts, and what is only inherited.

from hbc.verify import verify_model
result = verify_model(Path("model.onnx"), inputs=Path("samples.npz"))
result.passed, result.starts, result.rows
"""

from __future__ import annotations

from .measure import Distance, Verdict
from .pairing import Absent
from .result import TensorRow, Tolerance, VerifyResult
from .run import verify_model

__all__ = ["Absent", "Distance", "TensorRow", "Tolerance", "Verdict", "VerifyResult", "verify_model"]
