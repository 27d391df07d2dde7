"""`docs/quantize-config.md`: the keys of the configuration of `hbc quantize`."""

from __future__ import annotations

from .text import NOTICE

ABOUT = """\
What `hbc quantize --config FILE` and `hbc.quantize(…, config=…)` take, as YAML, JSON or a mapping.
[Quantising a float model](quantize.md) says what to do with it. Everything has a default. An unknown key, node or
tensor is an error that names the nearest one.
"""
EXAMPLE = """\
```yaml
activations:
  method: mix
ops:
  Softmax: int16
nodes:
  /neck/*: int16
  /head/NonMaxSuppression: float
tensors:
  image: {threshold: 1.0}
auto: {target: 30}
```
"""


def quantize_config_page() -> str:
    """The page: an example and the table."""
    from hbc.ptq.config import key_rows  # loads pydantic, which the command line needs for this alone

    head = "| key | value | default | meaning |\n|---|---|---|---|\n"
    rows = "".join(f"| `{key}` | {kind} | {f'`{d}`' if d else ''} | {text} |\n" for key, kind, d, text in key_rows())
    notice = NOTICE.format("`hbc/ptq/config.py`")
    return f"# The keys of a quantising configuration\n\n{notice}\n{ABOUT}\n{EXAMPLE}\n{head}{rows}"
