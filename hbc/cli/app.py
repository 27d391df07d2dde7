"""`hbc`: the verbs, and what becomes of whatever they raise."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click

from hbc.diagnostics import (
    BadUsage,
    FileTrouble,
    HbcError,
    InternalError,
    OptionError,
    OutOfMemory,
    PassError,
    from_text,
    nearest,
)

from .console import Screen, Verbosity

DONE, CANNOT, USAGE, DIFFERENT, BUG, INTERRUPTED, TERMINATED, PIPE_CLOSED = 0, 1, 2, 3, 70, 130, 143, 141
DEBUG_NOTE = "HBC_DEBUG=1 shows the traceback"

# One line per verb here, so that `hbc --help` need not load what the verbs load.
VERBS = {
    "quantize": "Quantise a float ONNX model by calibration, for `hbc compile`.",
    "compile": "Compile an ONNX model into a .hbm program.",
    "run": "Run a .hbm program on arrays.",
    "check": "Compile and run a model, and compare with ONNX Runtime.",
    "verify": "Compare two stages of a model tensor by tensor: where does an error start?",
    "debug": "See what is hard on a quantised model's integers: ranges, weights, sensitivity, bad cases.",
    "check-ops": "Say where each node of a model would run, which rule refuses it, and what to try.",
    "perf": "Estimate how long a model takes on a board, and where the time goes.",
    "inspect": "Show what is in a .hbm program.",
    "opt": "Run single passes or stages on .hbir text or a model.",
    "ops": "List the ops and what the compiler can do with each.",
    "passes": "List the stages and passes of a march.",
    "help": "Explain an error by its code, such as E0207.",
}


class BadCommand(click.UsageError):
    """A command that there is none of, and what there is."""

    def __init__(self, message: str, hint: str, ctx: click.Context) -> None:
        super().__init__(message, ctx)
        self.hint = hint


class Verbs(click.Group):
    """Loads a verb's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order in which one meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of this name, or None."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"hbc.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs' lines, without loading the verbs."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named verb; a usage error that offers the nearest one otherwise."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            hint = f"{nearest(args[0], VERBS, limit=1) or 'hbc --help'} Verbs are {', '.join(VERBS)}"
            raise BadCommand(f"there is no command {args[0]!r}", hint, ctx)
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from hbc_runtime.version import __version__

        click.echo(f"hbc {__version__}")
        ctx.exit()


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Compile quantised ONNX models for the Horizon BPU, and run them bit for bit.

    \b
    Start with:   hbc compile model.onnx --march nash -o model.hbm
                  hbc check model.onnx --march nash
                  hbc run model.hbm --random 0

    Results go to stdout, the story to stderr. Exit status: 0 done, 1 the input can't be compiled, 2 usage, 3 check
    or verify found a difference (check-ops with --fail-on-cpu: a node on the CPU), 70 a bug in hbc.
    """  # noqa: D301 - \b is click's: the paragraph keeps its lines
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command with `args` (or the process's own) and return its exit status."""
    arguments = list(sys.argv[1:] if args is None else args)
    verbosity = Verbosity()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that isn't text must not end the run
    try:
        with _ending_on_terminate():
            status = _guarded(arguments, verbosity)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has seen enough (`| head`)
        _silence_stdout()
        return PIPE_CLOSED
    return status


def _guarded(arguments: list[str], verbosity: Verbosity) -> int:
    try:
        # Not `cli.main`: it would have its own idea of an interrupt and of a closed pipe.
        with cli.make_context("hbc", list(arguments), obj=verbosity) as ctx:
            returned = cli.invoke(ctx)
    except click.exceptions.Exit as err:
        return err.exit_code
    except click.UsageError as err:
        command = err.ctx.command_path if err.ctx is not None else "hbc"
        hint = err.hint if isinstance(err, BadCommand) else f"{command} --help"
        Screen(verbosity).diagnostic(BadUsage(title=err.format_message(), hint=hint))
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        Screen(verbosity).note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as err:  # noqa: BLE001 - the last resort: whatever is left is named, and nothing is swallowed
        return _failed(err, arguments, verbosity)
    return returned if isinstance(returned, int) else DONE


def _failed(err: Exception, arguments: list[str], verbosity: Verbosity) -> int:
    if os.environ.get("HBC_DEBUG"):
        traceback.print_exception(err)
    screen = Screen(verbosity)
    if isinstance(err, PassError) and err.is_bug:
        folder = err.reproducer or str(_write_crash(err, arguments))
        hint = f"report it with the files in {folder}"
        screen.diagnostic(replace(err.diagnostic, hint=hint, notes=(*err.diagnostic.notes, DEBUG_NOTE)))
        return BUG
    if isinstance(err, HbcError):
        screen.diagnostic(err.diagnostic)
        return USAGE if isinstance(err, OptionError) else CANNOT
    if _is_runtime_error(err):
        screen.diagnostic(replace(from_text(str(err)), code=getattr(err, "CODE", "R0100")))
        return CANNOT
    if isinstance(err, OSError):
        where = os.fsdecode(err.filename) if isinstance(err.filename, str | bytes) else ""
        screen.diagnostic(FileTrouble(title=err.strerror or str(err), loc=where))
        return CANNOT
    if isinstance(err, MemoryError):
        screen.diagnostic(OutOfMemory(why=str(err)))
        return CANNOT
    what = f"{type(err).__name__}: {err}" if str(err) else type(err).__name__
    hint = f"report it with the files in {_write_crash(err, arguments)}"
    screen.diagnostic(InternalError(message=what, hint=hint, notes=(DEBUG_NOTE,)))
    return BUG


def _is_runtime_error(err: Exception) -> bool:
    errors = sys.modules.get("hbc_runtime.errors")  # where it isn't loaded, nothing can have raised one
    return errors is not None and isinstance(err, errors.HbmError)


def _write_crash(err: Exception, arguments: list[str]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hbc-crash-"))
    text = "".join(traceback.format_exception(err))
    (folder / "traceback.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
    import shlex

    line = shlex.join(["hbc", *arguments])
    script = f"#!/bin/sh\ncd {shlex.quote(str(Path.cwd()))} && {line}\n"
    (folder / "repro.sh").write_text(script, encoding="utf-8", errors="backslashreplace")
    return folder


def _open_closed_streams() -> None:
    """Python has None where a stream was closed before it began (`hbc … >&-`): what goes there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own flush at exit has nothing to complain about."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def _ending_on_terminate() -> Iterator[None]:
    """SIGTERM ends the body by an exception, so that files half written are removed on the way out."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        sys.exit(TERMINATED)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread: whoever called keeps its own handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
