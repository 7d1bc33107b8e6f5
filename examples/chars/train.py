"""Train a small transformer, character by character, on real text: the source of Python's own standard library.

The text is on every machine that has Python: nothing is downloaded. The network (4 layers, 128 wide, 64 characters of
context; about 0.8 million parameters) learns to continue code; on two CPU cores it takes a few minutes, on a card
seconds. A tenth of the text is kept for the test. Loss is in nats a character; guessing among 97 characters is 4.6.

`holdfast.training` keeps model, optimizer, learning-rate schedule, random states and the position in the data: kill it
at any moment, start the same command again, and on the CPU it ends with the same weights, bit for bit. STEPS and SEED
change the length and the draw.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from holdfast import training

CONTEXT = 64
WIDTH = 128
HEADS = 4
LAYERS = 4
DROPOUT = 0.1
BATCH = 32
LEARNING_RATE = 1e-3
WARM_UP = 100
TEXT_BYTES = 4_000_000
TEST_SHARE = 0.1
TEST_BATCHES = 20
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127)) + "\N{REPLACEMENT CHARACTER}"


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Every place in the text as (CONTEXT characters, the same moved by one), both int64 of shape (CONTEXT,)."""

    def __init__(self, text: Tensor) -> None:
        """`text` is (n,) of indices into ALPHABET."""
        self.text = text

    def __len__(self) -> int:
        """How many windows there are, without overlap."""
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        """One window."""
        start = at * CONTEXT
        return self.text[start : start + CONTEXT], self.text[start + 1 : start + CONTEXT + 1]


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a shortcut around it."""

    def __init__(self) -> None:
        """With the sizes above."""
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(DROPOUT)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, CONTEXT, WIDTH) to the same; a character sees only those before it."""
        batch, length, width = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        fed: Tensor = self.feed(self.between(x))
        return x + fed


class Network(nn.Module):
    """From characters (batch, CONTEXT) to scores of the next one (batch, CONTEXT, len(ALPHABET))."""

    def __init__(self) -> None:
        """With the sizes above."""
        super().__init__()
        self.characters, self.places = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, x: Tensor) -> Tensor:
        """One pass."""
        places = torch.arange(x.shape[1], device=x.device)
        scores: Tensor = self.scores(self.last(self.blocks(self.characters(x) + self.places(places))))
        return scores


def read_text() -> Tensor:
    """The first few megabytes of the standard library's modules, in the order of their names, as indices (n,)."""
    root = sysconfig.get_paths()["stdlib"]
    places = {character: index for index, character in enumerate(ALPHABET)}
    text = ""
    for name in sorted(os.listdir(root)):
        if name.endswith(".py") and len(text) < TEXT_BYTES:
            with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
                text += file.read()
    return torch.tensor([places.get(character, len(ALPHABET) - 1) for character in text[:TEXT_BYTES]])


def measure_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross-entropy in nats a character."""
    return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())


@torch.no_grad()
def test_loss(network: nn.Module, windows: Windows, device: str) -> float:
    """Loss on the first test batches, without dropout."""
    network.eval()
    loader = DataLoader(windows, BATCH)
    losses = [
        measure_loss(network(x.to(device)), y.to(device)).item()
        for _, (x, y) in zip(range(TEST_BATCHES), loader, strict=False)
    ]
    network.train()
    return sum(losses) / len(losses)


def digest(network: nn.Module) -> str:
    """SHA-256 over all weights: equal digests are equal networks, bit for bit."""
    total = hashlib.sha256()
    for tensor in network.state_dict().values():
        total.update(tensor.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def main() -> int:
    """Train, report, write the result."""
    steps, seed = int(os.environ.get("STEPS", "1500")), int(os.environ.get("SEED", "0"))
    if steps < 1:
        print(f"chars: STEPS must be at least 1, not {steps}", file=sys.stderr)
        return 2
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = read_text()
    cut = int(len(text) * (1 - TEST_SHARE))
    known, test = Windows(text[:cut]), Windows(text[cut:])
    with training.run(every="20s", keep_last=2, keep_best=1, metric="test_loss", seed=seed) as run:
        network = Network().to(device)  # after run(): its first weights come from the seed
        optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: min(1.0, (at + 1) / WARM_UP))
        run.track(model=network, optimizer=optimizer, scheduler=schedule)
        batches = run.batches(DataLoader(known, BATCH, shuffle=True, drop_last=True))
        print(f"chars: {len(text):,} characters, seed {seed}, on {device}", flush=True)
        for step in run.steps(steps):
            x, y = next(batches)
            loss = measure_loss(network(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            run.log(loss=loss, lr=schedule.get_last_lr()[0])
            if (step + 1) % 250 == 0 or step + 1 == steps:
                with run.section("eval"):
                    measured = test_loss(network, test, device)
                run.log(test_loss=measured)
                print(f"step {step + 1}/{steps} loss {loss.item():.4f} test_loss {measured:.4f}", flush=True)
    result = {
        "steps": steps,
        "seed": seed,
        "test_loss": test_loss(network, test, device),
        "weights_sha256": digest(network),
    }
    artifacts = os.environ.get("HOLDFAST_ARTIFACT_DIR", "artifacts")
    os.makedirs(artifacts, exist_ok=True)
    with open(os.path.join(artifacts, "result.json"), "w", encoding="utf-8") as file:
        json.dump(result, file)
    print(f"chars: test loss {result['test_loss']:.4f}, weights {str(result['weights_sha256'])[:16]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
