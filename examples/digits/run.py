"""Run the compiled digits network on the held-out images and print its accuracy beside the QAT model's.

    hbc compile examples/digits/digits_qat.onnx --march nash -o digits.hbm
    python examples/digits/run.py digits.hbm

One image per run: the model's batch is 1.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hbc_runtime import Session
from hbc_runtime.program import TensorInfo

HERE = Path(__file__).parent
Array = npt.NDArray[np.generic]


def real(y: Array, info: TensorInfo) -> Array:
    """An output as real numbers: integers times their scales, which may differ from class to class."""
    if info.scale is None or y.dtype.kind == "f":
        return y
    return (y.astype(np.float64) - info.zero_point) * info.scale


def evaluate(session: Session, images: Array) -> Array:
    """Logits f[N, 10] of images f32[N, 1, 8, 8], one run per image."""
    output = session.outputs[0]
    rows = [real(session.run({"image": image[None]})[output.name], output) for image in images]
    return np.concatenate(rows)


def percent(correct: Array) -> str:
    """A share as text: `98.61 % (355 of 360)`."""
    return f"{correct.mean():.2%} ({correct.sum()} of {correct.size})"


def main() -> None:
    """Evaluate and print."""
    parser = argparse.ArgumentParser(description="Accuracy of a compiled digits network.")
    parser.add_argument("program", type=Path, help="the .hbm that hbc compile wrote")
    parser.add_argument("--engine", choices=("jit", "reference"), default="jit", help="reference: NumPy, slow")
    args = parser.parse_args()
    with np.load(HERE / "digits_test.npz") as data:
        images, labels, qat = data["image"], data["label"], data["logits"]
    with Session(args.program, engine=args.engine) as session:
        begin = time.perf_counter()
        logits = evaluate(session, images)
        seconds = time.perf_counter() - begin
    answers, qat_answers = logits.argmax(1), qat.argmax(1)
    print(f"{len(images)} held-out digits, {1e3 * seconds / len(images):.2f} ms each")
    print(f"  integers (hbc)        {percent(answers == labels)}")
    print(f"  QAT model (PyTorch)   {percent(qat_answers == labels)}")
    print(f"  same answer from both {percent(answers == qat_answers)}")


if __name__ == "__main__":
    main()
