"""What the end-to-end tests stand on: foreign processes and small clients."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The checkout."""

RULES = Path(__file__).resolve().parents[1] / "rules"
"""Rule files of this suite."""
