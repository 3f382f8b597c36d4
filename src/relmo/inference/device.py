"""The device that a model computes on."""

from __future__ import annotations

import torch

from relmo.errors import ConfigError


def check_device(device: str | torch.device) -> None:
    """Raise `ConfigError` for a device that this machine does not have."""
    try:
        if torch.device(device).type != "meta":  # which has shapes, but no numbers
            torch.empty(1, device=device)
            return
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        pass  # PyTorch raises any of these, by kind of device and how it was built
    raise ConfigError(
        f"There is no device {str(device)!r:.40}: this machine has {', '.join(list_devices())}. "
        "Choose one of these.",
        settings=["device"],
    )


def list_devices() -> list[str]:
    """Return the devices of this machine, as PyTorch names them."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found
