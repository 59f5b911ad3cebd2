"""A GPU for the tests: torch's and its runtime, or else small stand-ins for both."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from shmring.gpu import _runtime

SOURCE = Path(__file__).with_name("gpu_runtime.c")


def build(folder: Path) -> Path:
    library = folder / "libcudart.so.13"
    command = ("cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread")
    subprocess.run([*command, str(SOURCE), "-o", str(library)], check=True)
    return library


class Tensor:
    """A tensor with the methods that shmring calls."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(self.array[part])

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def reshape(self, *shape: Any) -> Tensor:
        return Tensor(self.array.reshape(*shape))

    def view(self, dtype: Any) -> Tensor:
        assert self.data_ptr() % dtype.itemsize == 0  # torch requires an aligned address, too
        return Tensor(self.array.view(dtype))

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array


def fake_torch() -> types.ModuleType:
    torch: Any = types.ModuleType("torch")
    for name in ("uint8", "int32", "int64", "float32", "float64"):
        setattr(torch, name, np.dtype(name))
    torch.empty = lambda n, dtype, device: Tensor(np.empty(n, dtype))
    torch.cuda = types.ModuleType("torch.cuda")
    torch.cuda.stream = torch.cuda.device = contextlib.nullcontext
    torch.cuda.current_stream = lambda: types.SimpleNamespace(cuda_stream=0)
    return torch


class StandIn:
    """The stand-in's runtime, loaded in this process, and a torch that uses it."""

    is_real = False

    def __init__(self, library: Path) -> None:
        self.library = library
        self.calls = ctypes.CDLL(str(library))
        self.torch: Any = fake_torch()
        sys.modules["torch"] = self.torch

    def hold(self) -> None:
        """Keep the copies that begin from now on from ending before finish()."""
        self.calls.hold(1)

    def finish(self) -> None:
        self.calls.hold(0)

    def last_error(self) -> int:
        return self.calls.cudaGetLastError()


class Real:
    """A GPU, by torch."""

    is_real = True

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        torch.cuda.init()

    def hold(self) -> None:
        self.torch.cuda._sleep(1_000_000_000)  # about half a second

    def finish(self) -> None:
        self.torch.cuda.synchronize()

    def last_error(self) -> int:
        return int(_runtime().last_error())


def make(folder: Path) -> StandIn | Real:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch
        if torch.cuda.is_available():
            return Real(torch)
    except ImportError:
        pass
    return StandIn(build(folder))
