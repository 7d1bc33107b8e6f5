"""Train a small network on real handwritten digits, with numpy alone.

The images are the 1,797 scans of the UCI "Optical Recognition of Handwritten Digits" set that ship inside
scikit-learn: nothing is downloaded. A quarter, drawn evenly from each digit, is kept for the test. In each epoch the
network sees each training image nine times: as it is and moved by one pixel in each direction. The seed fixes the
split, the first weights and the order.

It runs anywhere. Under holdfast it finds what it needs in its environment: HOLDFAST_RUN_DIR (the result goes to
`artifacts/` in it) and HOLDFAST_HEARTBEAT (a file with how far it is). EPOCHS and SEED change the length and the
draw.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

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


def train_epoch(network: Network, digits: Digits, rng: np.random.Generator, rate: float) -> float:
    """Show each image once in each position, in random order; answers the mean loss."""
    images = np.concatenate([shift(digits.images, *by) for by in SHIFTS])
    labels = np.tile(digits.labels, len(SHIFTS))
    order = rng.permutation(len(labels))
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    return float(np.mean([network.learn(images[batch], labels[batch], rate) for batch in batches]))


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
    heartbeat = os.environ.get("HOLDFAST_HEARTBEAT")
    artifacts = os.path.join(os.environ.get("HOLDFAST_RUN_DIR", "."), "artifacts")
    if epochs < 1:
        print(f"digits: EPOCHS must be at least 1, not {epochs}", file=sys.stderr)
        return 2
    rng = np.random.default_rng(seed)
    training, test = load(rng)
    network = Network(rng)
    print(f"digits: {len(training.labels)} training and {len(test.labels)} test images, seed {seed}", flush=True)
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        # Down to a tenth by a half cosine.
        rate = LEARNING_RATE * (0.55 + 0.45 * float(np.cos(np.pi * (epoch - 1) / epochs)))
        loss = train_epoch(network, training, rng, rate)
        accuracy = network.accuracy(test)
        print(
            f"epoch {epoch}/{epochs} loss {loss:.4f} "
            f"train_acc {network.accuracy(training):.4f} test_acc {accuracy:.4f}",
            flush=True,
        )
        if heartbeat:
            steps = epoch * -(-len(training.labels) * len(SHIFTS) // BATCH)
            beat = {"step": steps, "epoch": epoch, "phase": "train", "loss": loss, "time": time.time()}
            try:
                write_json(heartbeat, beat)
            except OSError as error:
                # Training never fails because of a progress report.
                print(f"digits: no heartbeat: {error}", file=sys.stderr, flush=True)
    result = {
        "accuracy": accuracy,
        "epochs": epochs,
        "seed": seed,
        "n_train": len(training.labels),
        "n_test": len(test.labels),
    }
    os.makedirs(artifacts, exist_ok=True)
    write_json(os.path.join(artifacts, "result.json"), result)
    print(f"digits: test accuracy {accuracy:.4f}; wrote {os.path.join(artifacts, 'result.json')}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
