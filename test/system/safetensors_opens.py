"""Opens a checkpoint of Trireme with Python's safetensors and compares every value.

usage: safetensors_opens.py CHECKPOINT_SAMPLE   (the program that writes the checkpoint)
Exit code 77: skipped, because numpy or safetensors cannot be imported.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as missing:
    print(f"SKIPPED: {missing}; {sys.executable} -m pip install numpy safetensors")
    sys.exit(77)


def expected(shape, dtype, scale):
    """The values of TestTensor::Value in test/unit/checkpoint/checkpoint_fixture.hpp."""
    i = numpy.arange(numpy.prod(shape, dtype=int), dtype=numpy.int64)
    values = scale * ((i * 2654435761) % 1000003 / 1000003.0 - 0.5)
    return values.astype(dtype).reshape(shape)


def main():
    with tempfile.TemporaryDirectory(prefix="trireme_safetensors_") as folder:
        subprocess.run([sys.argv[1], folder], check=True, timeout=120)
        checkpoint = pathlib.Path(folder) / "latest"
        tensors = safetensors.numpy.load_file(checkpoint / "model.safetensors")
        wanted = {
            "weight": expected((3, 5), numpy.float32, 1.0),
            "bias": expected((3,), numpy.float64, 2.0),
            "scale": expected((), numpy.float32, 4.0),
            "large": expected((1100, 1000), numpy.float32, 0.5),
        }
        assert set(tensors) == set(wanted), sorted(tensors)
        for name, value in wanted.items():
            found = tensors[name]
            assert found.dtype == value.dtype, (name, found.dtype)
            assert found.shape == value.shape, (name, found.shape)
            assert numpy.array_equal(found, value), name
        with safetensors.safe_open(checkpoint / "model.safetensors", "numpy") as file:
            assert file.metadata()["format"] == "pt", file.metadata()
        assert not safetensors.numpy.load_file(checkpoint / "optimizer.safetensors")
        assert json.loads((checkpoint / "run.json").read_text()) == {"sequence": 1, "step": 1}
        assert json.loads((checkpoint / "checksums.json").read_text())["files"]
    print(f"safetensors {safetensors.__version__} read {len(wanted)} tensors, all values equal")


main()
