"""Plant each mistake in a copy of the repository and see that the suite catches it: `bash scripts/mutation [words]`.

Exits 0 where every mistake was caught, 1 where one survived or where the suite fails without any. Arguments pick the
mutants whose names contain one of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
LIMIT = 900  # seconds of one pytest run: a mistake may make a loop endless, which is caught too
FAILED = 1  # pytest's exit status for failed tests; others mean that nothing was tested


@dataclass(frozen=True)
class Outcome:
    """What pytest said: whether tests failed, and which test was the first."""

    caught: bool
    detail: str
    seconds: float


def copy_repository(target: Path) -> None:
    """Every file that version control knows or would take, as it is now."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout  # fmt: skip
    for name in filter(None, listing.decode().split("\0")):
        source = ROOT / name
        if source.is_symlink() or source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def run_pytest(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """(exit status, output) of the tests in `folder`, stopped at the first failure."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return FAILED, f"FAILED did not come to an end in {LIMIT} s"
    return done.returncode, done.stdout + done.stderr


def try_mutant(mutant: Mutant, folder: Path) -> Outcome:
    """Apply, test, take back."""
    start = time.perf_counter()
    before = {edit.file: (folder / edit.file).read_text(encoding="utf-8") for edit in mutant.edits}
    try:
        for edit in mutant.edits:
            path = folder / edit.file
            path.write_text(path.read_text(encoding="utf-8").replace(edit.old, edit.new), encoding="utf-8")
        status, output = run_pytest(folder, mutant.tests)
    finally:
        for file, text in before.items():
            (folder / file).write_text(text, encoding="utf-8")
    first = re.search(r"^FAILED (.*?)(?: - .*)?$", output, re.MULTILINE)
    caught = status == FAILED and first is not None
    detail = first[1] if caught and first is not None else f"pytest ended with {status}\n{output[-800:]}"
    return Outcome(caught, detail, time.perf_counter() - start)


def main(words: list[str]) -> int:
    """Run the mutants that `words` pick."""
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    chosen = [m for m in MUTANTS if not words or any(w in m.name for w in words)]
    if not chosen:
        print(f"no mistake's name has any of {', '.join(words)} in it")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        folders: SimpleQueue[Path] = SimpleQueue()
        for i in range(min(2, os.cpu_count() or 1)):
            folder = Path(scratch) / f"copy{i}"
            copy_repository(folder)
            folders.put(folder)
        every = tuple(dict.fromkeys(t for m in chosen for t in m.tests))
        folder = folders.get()
        status, output = run_pytest(folder, every)
        folders.put(folder)
        if status != 0:
            print(f"the suite fails without any mistake:\n{output[-2000:]}")
            return 1

        def run(mutant: Mutant) -> bool:
            folder = folders.get()
            try:
                outcome = try_mutant(mutant, folder)
            finally:
                folders.put(folder)
            verdict = "caught  " if outcome.caught else "SURVIVED"
            print(f"{verdict}  {mutant.name}  ({outcome.seconds:.0f} s)\n          {outcome.detail}", flush=True)
            return outcome.caught

        with ThreadPoolExecutor(folders.qsize()) as pool:
            caught = sum(pool.map(run, chosen))
    print(f"{caught} of {len(chosen)} planted mistakes were caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
