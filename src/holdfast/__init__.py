"""holdfast runs training jobs on GPUs that people share or rent, and loses nothing."""

from __future__ import annotations

__version__ = "0.1.0"
