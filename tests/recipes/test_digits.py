import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recipes.digits import digit_split


def test_digits_parts_share_no_image():
    train, test = digit_split(0.2, seed=0)
    assert len(train) + len(test) == 1797
    assert len(test) == 359
    images = {image.numpy().tobytes() for image, _ in train}
    shared = sum(image.numpy().tobytes() in images for image, _ in test)
    assert shared == 0
    again, _ = digit_split(0.2, seed=0)
    assert torch.equal(train.tensors[0], again.tensors[0])


@pytest.mark.procs
def test_digits_reaches_97_percent_on_two_ranks(tmp_path: Path):
    command = [sys.executable, "-m", "placet", "train", "digits", "-n", "2"]
    done = subprocess.run(
        [*command, "--set", "epochs=6"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in done.stdout.splitlines() if "accuracy" in x]
    assert float(line.split()[-1]) >= 0.97
