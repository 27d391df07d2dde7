"""`python -m hbc` is `hbc`."""

from __future__ import annotations

import sys

from hbc.cli import main

sys.exit(main())
