"""How each library saves and loads the same state; each is used as its documentation says.

`save` returns when the training loop may go on; `wait` when every byte, every file and the directory are on the disk,
where a library does not see to that itself by an fsync of what it left. Without its library it raises ImportError.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .states import Training


class Method:
    """One way to save; made once in a process, for the state that it then saves again and again."""

    blocking = False
    """Whether `save` returns only when everything is durable."""

    def __init__(self, training: Training, directory: str) -> None:
        self.training, self.directory = training, directory

    def save(self, step: int) -> None:
        """Save; returns when the state may be changed."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until the save that is under way is durable."""

    def path(self, step: int) -> str:
        """Where the checkpoint of this step is."""
        return os.path.join(self.directory, f"step-{step}")

    def load(self, step: int) -> object:
        """Read a checkpoint into memory, as a script does that resumes; answers what it read."""
        raise NotImplementedError

    def close(self) -> None:
        """Let processes and threads go."""


def sync(path: str) -> None:
    """Fsync a file, or every file and directory below one, and the directory it is in."""
    found = [path, os.path.dirname(path)]
    for parent, directories, files in os.walk(path):
        found += [os.path.join(parent, name) for name in (*directories, *files)]
    for name in found:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Nothing(Method):
    """The control: what a loop that saves nothing seems to lose is the error of the measurement."""

    def save(self, step: int) -> None:
        """Nothing."""


class Memcpy(Method):
    """The floor of the pause: every tensor copied into a buffer that was used before. Saves nothing."""

    def __init__(self, training: Training, directory: str) -> None:
        super().__init__(training, directory)
        self._buffers = [tensor.clone() for tensor in training.tensors()]

    def save(self, step: int) -> None:  # noqa: ARG002 - the signature of a method
        """Copy."""
        for buffer, tensor in zip(self._buffers, self.training.tensors(), strict=True):
            buffer.copy_(tensor.detach())


class TorchSave(Method):
    """torch.save into a file, fsynced by hand."""

    blocking = True

    def save(self, step: int) -> None:
        """Save and sync."""
        import torch

        torch.save(self.training.state_dict(), self.path(step))
        sync(self.path(step))

    def load(self, step: int) -> object:
        """The file, as the documentation says for tensors only."""
        import torch

        return torch.load(self.path(step), weights_only=True)


class Safetensors(Method):
    """safetensors.torch.save_file, fsynced by hand: tensors only, no hashes."""

    blocking = True

    def save(self, step: int) -> None:
        """Save and sync."""
        from safetensors.torch import save_file

        save_file({str(at): tensor.detach() for at, tensor in enumerate(self.training.tensors())}, self.path(step))
        sync(self.path(step))

    def load(self, step: int) -> object:
        """Map the file, and copy every tensor out of it: until then nothing was read."""
        from safetensors.torch import load_file

        return [tensor.clone() for tensor in load_file(self.path(step)).values()]


class SafetensorsOneByOne(Safetensors):
    """The same, with no copy kept: each is made where the one before it was. All are never in memory together."""

    def load(self, step: int) -> object:
        """Map the file, and copy one tensor after the other."""
        from safetensors.torch import load_file

        for tensor in load_file(self.path(step)).values():
            tensor.clone()
        return None


class DcpSync(Method):
    """torch.distributed.checkpoint.save; its writer fsyncs the files."""

    blocking = True

    def save(self, step: int) -> None:
        """Save; the directory is synced here."""
        import torch.distributed.checkpoint as dcp

        dcp.save(self.training.state_dict(), checkpoint_id=self.path(step), no_dist=True)
        sync(self.path(step))


class DcpThread(Method):
    """torch.distributed.checkpoint.async_save as it comes: a thread."""

    def __init__(self, training: Training, directory: str) -> None:
        super().__init__(training, directory)
        self._future: Future[Any] | None = None
        self._path = ""

    def save(self, step: int) -> None:
        """Stage; a thread writes."""
        import torch.distributed.checkpoint as dcp

        self._path = self.path(step)
        self._future = dcp.async_save(self.training.state_dict(), checkpoint_id=self._path, no_dist=True)  # type: ignore[assignment]

    def wait(self) -> None:
        """Wait for the thread; the directory is synced here."""
        if self._future is not None:
            self._future.result()
            sync(self._path)
            self._future = None


class DcpProcess(DcpThread):
    """async_save into a process of its own, staged in shared memory that is reused; copied before it returns.

    Pinning the shared memory is for CUDA tensors, which there are none of.
    """

    def __init__(self, training: Training, directory: str) -> None:
        super().__init__(training, directory)
        import torch.distributed as dist
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options)

    def save(self, step: int) -> None:
        """Stage; the process writes."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

        self._path = self.path(step)
        answer = dcp.async_save(
            self.training.state_dict(),
            checkpoint_id=self._path,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self._stager,
        )
        self._future = answer.upload_completion if isinstance(answer, AsyncSaveResponse) else answer

    def close(self) -> None:
        """Let its process group go."""
        import torch.distributed as dist

        self._stager.close()
        dist.destroy_process_group()


class Torchsnapshot(Method):
    """torchsnapshot.Snapshot.async_take; it syncs nothing."""

    def __init__(self, training: Training, directory: str) -> None:
        super().__init__(training, directory)
        import torchsnapshot

        self._library = torchsnapshot
        self._pending: Any = None
        self._path = ""

    def save(self, step: int) -> None:
        """Stage; threads write."""
        self._path = self.path(step)
        state = {"model": self.training.model, "optimizer": self.training.optimizer}
        self._pending = self._library.Snapshot.async_take(self._path, state)

    def wait(self) -> None:
        """Wait for the threads, then sync."""
        if self._pending is not None:
            self._pending.wait()
            sync(self._path)
            self._pending = None


class Orbax(Method):
    """orbax.checkpoint.StandardCheckpointer, its asynchronous default; numpy views of the torch tensors."""

    def __init__(self, training: Training, directory: str) -> None:
        super().__init__(training, directory)
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import orbax.checkpoint as ocp

        self._checkpointer = ocp.StandardCheckpointer()
        self._path = ""

    def save(self, step: int) -> None:
        """Stage; threads write."""
        self._path = self.path(step)
        tree = {f"tensor_{at}": tensor.detach().numpy() for at, tensor in enumerate(self.training.tensors())}
        self._checkpointer.save(self._path, tree)

    def wait(self) -> None:
        """Wait for the threads, then sync."""
        if self._path:
            self._checkpointer.wait_until_finished()
            sync(self._path)
            self._path = ""

    def close(self) -> None:
        """Let its threads go."""
        self._checkpointer.close()


class Holdfast(Method):
    """holdfast.training, as a script with a loop of its own uses it."""

    asynchronous = True

    def __init__(self, training: Training, directory: str) -> None:
        super().__init__(training, directory)
        from holdfast import training as library

        self._run = library.run(directory, every=None, keep_last=1, asynchronous=self.asynchronous)
        self._run.__enter__()
        self._run.track(model=training.model, optimizer=training.optimizer)
        self._run.resume()
        self._run.beat(0)
        self._save: Any = None

    def save(self, step: int) -> None:
        """Copy; a process writes."""
        self._run.beat(step)
        self._save = self._run.save()

    def wait(self) -> None:
        """Until the checkpoint is durable."""
        if self._save is not None:
            self._save.result()
            self._save = None

    def load(self, step: int) -> object:
        """Every byte is proven; the arrays are in memory then."""
        from holdfast import training as library

        return library.load(self.path(step))

    def close(self) -> None:
        """The end of the run, without a last save: it would be one more."""
        self._run.__exit__(None, None, None)


class HoldfastInline(Holdfast):
    """The same without the process: what happens where there is no memory for a copy."""

    asynchronous = False
    blocking = True


METHODS: dict[str, type[Method]] = {
    "nothing": Nothing,
    "memcpy": Memcpy,
    "torch.save": TorchSave,
    "safetensors": Safetensors,
    "safetensors-one": SafetensorsOneByOne,
    "dcp": DcpSync,
    "dcp-thread": DcpThread,
    "dcp-process": DcpProcess,
    "torchsnapshot": Torchsnapshot,
    "orbax": Orbax,
    "holdfast": Holdfast,
    "holdfast-inline": HoldfastInline,
}
