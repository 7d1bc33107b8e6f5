"""What is saved: parameters like those of a GPT in fp32, with the moments of AdamW, and steps that change all of them.

About 499 MB in 65 parameters and 2.0 GB in 81, each three times: the weights, and two moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

SHAPES = {
    "tiny": (2, 64, 1000),
    "500": (16, 448, 6840),
    "2000": (20, 816, 8400),
}
"""Layers, width, and rows of the embedding, by the size in MB."""


class Training(NamedTuple):
    """A model and its optimizer, after one step."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def state_dict(self) -> dict[str, Any]:
        """What a script hands to a library: references, not copies."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the state."""
        import torch

        found: list[torch.Tensor] = list(self.model.state_dict().values())
        for moments in self.optimizer.state_dict()["state"].values():
            found += [value for value in moments.values() if isinstance(value, torch.Tensor)]
        return found

    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def step(self, rows: torch.Tensor) -> None:
        """One step of training on a batch of rows of the embedding's width."""
        self.model(rows).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def touch(self) -> None:
        """Change every weight a little, as a step does: a method that looks at versions must not find old ones."""
        import torch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(-1)[:1].add_(1.0)


def build(size: str) -> Training:
    """The state of this size; random weights and moments."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if size == "many":
        return _build_many()
    layers, width, rows = SHAPES[size]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.proj = nn.Linear(width, width, bias=False)
            self.up = nn.Linear(width, 4 * width, bias=False)
            self.down = nn.Linear(4 * width, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mixed = self.qkv(x).view(*x.shape[:-1], 3, width).sum(dim=-2)
            x = x + self.proj(mixed)
            return x + self.down(torch.relu(self.up(x)))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, rows, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return self.head(x)  # type: ignore[no-any-return]  # torch's modules answer Any

    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    training = Training(model, optimizer)
    training.step(torch.randn(1, width))
    for moments in optimizer.state.values():
        moments["exp_avg"].normal_()
        moments["exp_avg_sq"].uniform_()
    return training


def _build_many() -> Training:
    """3,333 parameters of 64 x 64 numbers: more than 13,000 tensors with the moments and the steps, 164 MB."""
    import torch
    from torch import nn

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrices = nn.ParameterList(nn.Parameter(torch.randn(64, 64)) for _ in range(3333))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([matrix.sum() for matrix in self.matrices]).sum() * x.sum()

    model = Many()
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=1e-5))
    training.step(torch.ones(1))
    return training


def make_batch(size: str, count: int) -> torch.Tensor:
    """A batch for `Training.step`."""
    import torch

    return torch.randn(count, SHAPES[size][1])
