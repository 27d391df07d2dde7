"""Runs `hbc` as a user does: a process of its own, with its own streams and exit status."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"


@dataclass(frozen=True)
class Done:
    """What a run of the command left behind."""

    status: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """The process's environment, with this checkout first on the path and no colour forced on or off."""
    kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "HBC_DEBUG", "COLUMNS"}}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def hbc(*args: str | Path, cwd: Path, **env: str) -> Done:
    """`hbc ARGS…` in folder `cwd`."""
    line = [sys.executable, "-m", "hbc", *map(str, args)]
    done = subprocess.run(line, cwd=cwd, env=environment(**env), capture_output=True, check=False, timeout=300)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def on_terminal(args: list[str], cwd: Path, **env: str) -> tuple[int, str]:
    """Status and screen of `hbc ARGS…` with both streams on a terminal."""
    master, slave = pty.openpty()
    line = [sys.executable, "-m", "hbc", *args]
    with subprocess.Popen(
        line,
        cwd=cwd,
        env=environment(**{"TERM": "xterm", "COLUMNS": "100", **env}),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed: Linux says so with EIO
                break
            if not chunk:
                break
            seen += chunk
        os.close(master)
    return process.returncode, seen.decode()
