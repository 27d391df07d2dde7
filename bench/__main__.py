"""`python -m bench`: time hbc beside ONNX Runtime and OpenVINO. See `--help`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import hbc
from bench import startup
from bench.contenders import CONTENDERS, LIMITED, NEEDS
from bench.measure import OURS, contest
from bench.nets import BUILT, Net, built, in_batches, real
from bench.peak import vnni_peak
from bench.report import machine, table, write_chart, write_json


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("nets", nargs="*", help=f"among {', '.join(BUILT)} and the real ones; all by default")
    parser.add_argument("--models", type=Path, help="a folder of real models, one folder each")
    parser.add_argument("--cache", type=Path, default=Path("build/bench"), help="where the built networks are kept")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="above 1, of the built networks")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--starts", type=int, default=5, help="processes per engine that are timed from their start")
    parser.add_argument("--engines", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--isa", choices=list(LIMITED), help="hbc and OpenVINO, both limited to an instruction set")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    nets = list(_nets(options.models, options.cache, options.nets))
    engines = list(LIMITED[options.isa]) if options.isa else [OURS, *options.engines]
    peak = vnni_peak() is not None and not options.isa
    contests = []
    jobs = [(threads, batch, net) for threads in options.threads for batch in options.batch for net in nets]
    for threads, batch, net in jobs:
        if batch > 1 and (net.name not in BUILT or options.isa):
            continue
        some = net if batch == 1 else in_batches(net, batch, options.cache)
        names = [n for n in dict.fromkeys(engines) if NEEDS[n] in some.files]
        contests.append(contest(some, names, threads, options.rounds, peak=peak and threads == 1))
        print(table(contests[-1:]), flush=True)
    begun = [s for net in nets for s in _starts(net, options.starts)] if not options.isa else []
    print(f"\n{machine()}\n\n{table(contests)}\n\n{startup.table(begun)}")
    if options.json:
        write_json(contests, begun, options.json)
    if options.chart:
        write_chart(contests, options.chart)


def _starts(net: Net, rounds: int) -> list[startup.Start]:
    return startup.starts(net.name, net.files, net.inputs, rounds) if rounds and net.name in BUILT else []


def _nets(models: Path | None, cache: Path, wanted: list[str]) -> list[Net]:
    found = {name: (lambda n=name: built(n, cache)) for name in BUILT}
    found |= {net.name: (lambda n=net: n) for net in (real(models) if models else ())}
    unknown = [n for n in wanted if n not in found]
    if unknown:
        raise SystemExit(f"no network {unknown[0]!r}; there are {', '.join(found)}")
    return [with_programs(found[n](), cache) for n in (wanted or found)]


def with_programs(net: Net, folder: Path) -> Net:
    """The network with its compiled programs (`hbm_u8s8`, `hbm_s8s8`) in `folder`, and its multiplications."""
    folder.mkdir(parents=True, exist_ok=True)
    files, macs = dict(net.files), 0
    for form in ("u8s8", "s8s8"):
        if form in files:
            compiled = hbc.compile(files[form], march="nash-e")
            files[f"hbm_{form}"] = folder / f"{net.name}_{form}.hbm"
            compiled.save(files[f"hbm_{form}"])
            macs = compiled.report.macs
    return replace(net, files=files, macs=macs)


if __name__ == "__main__":
    main()
