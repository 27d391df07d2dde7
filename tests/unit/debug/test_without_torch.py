"""The debug kit without PyTorch: analyses of files work, the kit for models says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.command import ROOT, environment

NO_TORCH = "import sys; sys.modules['torch'] = None\n"


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", NO_TORCH + code]
    return subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def test_the_kit_for_models_says_what_to_install(tmp_path: Path) -> None:
    done = python("from hbc.quantization import debug", tmp_path)
    assert done.returncode == 1
    assert "pip install 'hbc[torch]'" in done.stderr


def test_files_need_no_torch(tmp_path: Path) -> None:
    model = str(ROOT / "examples" / "digits" / "digits_qat.onnx")
    done = python(f"from hbc.cli import main; sys.exit(main(['debug', 'weights', {model!r}]))", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wide.weight_q" in done.stdout
