"""Find the lanes in an image with a compiled program, draw them, and say how good and how fast the program is.

    hbc compile examples/laneaf/lane.onnx --march nash -o lane.hbm
    python examples/laneaf/demo.py lane.hbm

Needs hbc and Pillow, not PyTorch.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
from laneaf.drawing import draw_lanes
from laneaf.evaluating import images_of, lanes_of, session_heads, total_score
from laneaf.files import lines_file, read_image, read_lanes, resized, write_image
from laneaf.metric import Score, score
from laneaf.scenes import HELD_OUT, Image, Lane, Scene, scenes
from PIL import UnidentifiedImageError

from hbc.perf import board_named, estimate
from hbc_runtime import HbmError, Session

HERE = Path(__file__).parent
SCENE = HERE / "scenes" / "car.png"


@click.command()
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--image", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=SCENE)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("lanes.png"))
@click.option("--test", default=100, show_default=True, help="Held-out scenes to count F1 on; 0 for none.")
@click.option("--engine", type=click.Choice(["jit", "reference"]), default="jit", help="reference: NumPy, slow.")
def main(program: Path, image: Path, output: Path, test: int, engine: str) -> None:
    """Find the lanes in an image with PROGRAM (.hbm). A .lines.txt beside the image holds the true ones."""
    try:
        session = Session(program, engine=engine)
        picture = read_image(image)
        truth = read_lanes(lines_file(image)) if lines_file(image).exists() else ()
    except (HbmError, UnidentifiedImageError, ValueError) as err:
        raise click.ClickException(str(err)) from err
    missing = {"hm", "vaf", "haf"} - {o.name for o in session.outputs}
    if missing:
        raise click.ClickException(f"{program} is no lane network: it has no output {' or '.join(sorted(missing))}")
    with session:
        _show_image(session, image, picture, truth, output)
        if test > 0:
            _show_score(session, test)
        found = estimate(session.program, board_named(None, session.program.march))
        ms, busy = found.latency_us / 1e3, found.bpu_us
        print(f"on an {found.board.title} (an estimate): {ms:.2f} ms an image, {busy:.0f} µs of it on the BPU")


def size_of(session: Session) -> tuple[int, int]:
    """Rows and columns of the program's image."""
    _, _, rows, columns = session.inputs[0].shape
    return rows, columns


def _show_image(session: Session, path: Path, picture: Image, truth: tuple[Lane, ...], output: Path) -> None:
    rows, columns = size_of(session)
    scaled = Scene(resized(picture, rows, columns), truth)
    lanes = lanes_of(session_heads(session, images_of([scaled])), 0)
    inside = path.is_absolute() and path.is_relative_to(Path.cwd())
    print(f"{len(lanes)} lanes in {path.relative_to(Path.cwd()) if inside else path}")
    for i, lane in enumerate(lanes):
        (x0, y0), (x1, y1) = lane[0], lane[-1]
        print(f"  {i + 1}: from ({x0:.0f}, {y0:.0f}) up to ({x1:.0f}, {y1:.0f})")
    if truth and picture.shape[:2] == (rows, columns):
        print(f"  {in_words(score(lanes, truth, rows, columns))}")
    write_image(output, draw_lanes(scaled.image, lanes, truth))
    print(f"picture: {output}")


def _show_score(session: Session, count: int) -> None:
    held_out = scenes(HELD_OUT, count, *size_of(session))
    images = images_of(held_out)
    begin = time.perf_counter()
    heads = session_heads(session, images)
    seconds = time.perf_counter() - begin
    total = total_score(heads, held_out)
    print(f"{count} held-out scenes: F1 {100 * total.f1:.1f} % ({in_words(total)})")
    print(f"on this machine: {1e3 * seconds / count:.2f} ms an image")


def in_words(total: Score) -> str:
    """`7 of 8 lanes found, 1 that isn't there`."""
    return f"{total.right} of {total.right + total.missed} lanes found, {total.wrong} found that aren't there"


if __name__ == "__main__":
    main()
