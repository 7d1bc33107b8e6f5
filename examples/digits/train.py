"""Train a small network on real handwritten digits, with numpy alone.

The images are the 1,797 scans of the UCI "Optical Recognition of Handwritten Digits" set that ship inside
scikit-learn: nothing is downloaded. A quarter, drawn evenly from each digit, is kept for the test. In each epoch the
network sees each training image nine times: as it is and moved by one pixel in each direction. The seed fixes the
split, the first weights and the order.

`holdfast.training` keeps it: kill it at any moment and start the same command again, and it goes on in the middle of
the epoch to the same final weights, bit for bit. Under `holdfast run` the library is there by itself; without a
supervisor `python train.py` behaves the same and keeps its checkpoints in `./checkpoints`. EPOCHS and SEED change the
length and the draw; the result goes to `artifacts/` in the run directory, or here.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from holdfast import training

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

SIDE = 8
CLASSES = 10
BRIGHTEST = 16.0  # a pixel is a count from 0 to 16
TEST_SHARE = 0.25
LAYERS = (SIDE * SIDE, 1024, 512, CLASSES)
BATCH = 32
LEARNING_RATE = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
SHIFTS = tuple((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1))


@dataclass(frozen=True, slots=True)
class Digits:
    """Images (n, 64) from 0 to 1, and what each one shows (n,)."""

    images: Floats
    labels: Labels


def load(rng: np.random.Generator) -> tuple[Digits, Digits]:
    """The training and the test images; each digit has the same share in both."""
    bunch = load_digits()
    images = (bunch.data / BRIGHTEST).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    in_test = np.zeros(len(labels), dtype=bool)
    for digit in range(CLASSES):
        members = rng.permutation(np.flatnonzero(labels == digit))
        in_test[members[: round(len(members) * TEST_SHARE)]] = True
    return Digits(images[~in_test], labels[~in_test]), Digits(images[in_test], labels[in_test])


def shift(images: Floats, down: int, right: int) -> Floats:
    """Move each image by whole pixels; what enters at the edge is empty."""
    padded = np.pad(images.reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    moved = padded[:, 1 - down : 1 - down + SIDE, 1 - right : 1 - right + SIDE]
    return np.ascontiguousarray(moved).reshape(len(images), -1)


class Network:
    """A multilayer perceptron with rectified units and a softmax on top, trained by gradient descent with momentum."""

    def __init__(self, rng: np.random.Generator) -> None:
        # He et al. 2015: this variance keeps the signal's size through rectified layers.
        self.weights: list[Floats] = [
            (rng.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)).astype(np.float32)
            for fan_in, fan_out in pairwise(LAYERS)
        ]
        self.biases: list[Floats] = [np.zeros(width, dtype=np.float32) for width in LAYERS[1:]]
        self._speeds: list[Floats] = [np.zeros_like(p) for p in (*self.weights, *self.biases)]

    @property
    def state(self) -> dict[str, list[Floats]]:
        """Everything that training changes, by reference: what is tracked."""
        return {"weights": self.weights, "biases": self.biases, "speeds": self._speeds}

    def digest(self) -> str:
        """SHA-256 over all weights: equal digests are equal networks, bit for bit."""
        total = hashlib.sha256()
        for parameter in (*self.weights, *self.biases):
            total.update(parameter.tobytes())
        return total.hexdigest()

    def forward(self, images: Floats) -> list[Floats]:
        """The activations of every layer; the last ones are class probabilities (n, 10)."""
        layers = [images]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layers.append(np.maximum(layers[-1] @ weight + bias, 0))
        scores = layers[-2] @ self.weights[-1] + self.biases[-1]
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        layers[-1] = odds / odds.sum(axis=1, keepdims=True)
        return layers

    def learn(self, images: Floats, labels: Labels, rate: float) -> float:
        """One step on one batch; answers the mean cross-entropy before it."""
        layers = self.forward(images)
        rows = np.arange(len(labels))
        loss = float(-np.log(layers[-1][rows, labels] + 1e-12).mean())
        error = layers[-1].copy()
        error[rows, labels] -= 1
        error /= len(labels)
        depth = len(self.weights)
        for i in reversed(range(depth)):
            step_w = layers[i].T @ error + WEIGHT_DECAY * self.weights[i]
            step_b = error.sum(axis=0)
            if i:
                error = (error @ self.weights[i].T) * (layers[i] > 0)
            self._move(self.weights[i], self._speeds[i], step_w, rate)
            self._move(self.biases[i], self._speeds[depth + i], step_b, rate)
        return loss

    @staticmethod
    def _move(parameter: Floats, speed: Floats, slope: Floats, rate: float) -> None:
        speed *= MOMENTUM
        speed -= rate * slope
        parameter += speed

    def accuracy(self, digits: Digits) -> float:
        """The share of images that it names rightly."""
        guesses = self.forward(digits.images)[-1].argmax(axis=1)
        return float((guesses == digits.labels).mean())


def shift_all(digits: Digits) -> Digits:
    """Each image once in each position."""
    return Digits(np.concatenate([shift(digits.images, *by) for by in SHIFTS]), np.tile(digits.labels, len(SHIFTS)))


def write_json(path: str, content: dict[str, Any]) -> None:
    """Replace a file as a whole: a reader sees the old content or the new one, never a part."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def main() -> int:
    """Train, report each epoch, write the result."""
    epochs = int(os.environ.get("EPOCHS", "30"))
    seed = int(os.environ.get("SEED", "0"))
    if epochs < 1:
        print(f"digits: EPOCHS must be at least 1, not {epochs}", file=sys.stderr)
        return 2
    rng = np.random.default_rng(seed)
    known, test = load(rng)
    network, shifted = Network(rng), shift_all(known)
    sampler = training.BatchSampler(len(shifted.labels), BATCH, seed=seed)
    print(f"digits: {len(known.labels)} training and {len(test.labels)} test images, seed {seed}", flush=True)
    # Every two seconds, because all of it takes a quarter of a minute; "auto" is for runs of hours.
    with training.run(every="2s", keep_last=2, seed=seed) as run:
        run.track(network=network.state)
        run.state["loss"] = 0.0  # summed over the epoch so far: it has to survive a kill, too
        batches = run.batches(sampler)
        for step in run.steps(epochs * len(sampler)):
            epoch = step // len(sampler)
            # Down to a tenth by a half cosine.
            rate = LEARNING_RATE * (0.55 + 0.45 * float(np.cos(np.pi * epoch / epochs)))
            batch = next(batches)
            loss = network.learn(shifted.images[batch], shifted.labels[batch], rate)
            run.state["loss"] += loss
            run.log(loss=loss, rate=rate)
            if (step + 1) % len(sampler) == 0:
                mean, run.state["loss"] = run.state["loss"] / len(sampler), 0.0
                print(
                    f"epoch {epoch + 1}/{epochs} loss {mean:.4f} "
                    f"train_acc {network.accuracy(known):.4f} test_acc {network.accuracy(test):.4f}",
                    flush=True,
                )
    accuracy = network.accuracy(test)
    result = {
        "accuracy": accuracy,
        "epochs": epochs,
        "seed": seed,
        "n_train": len(known.labels),
        "n_test": len(test.labels),
        "weights_sha256": network.digest(),
    }
    artifacts = os.environ.get("HOLDFAST_ARTIFACT_DIR", "artifacts")
    os.makedirs(artifacts, exist_ok=True)
    write_json(os.path.join(artifacts, "result.json"), result)
    print(f"digits: test accuracy {accuracy:.4f}; wrote {os.path.join(artifacts, 'result.json')}", flush=True)
    print(f"digits: weights {network.digest()[:16]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
