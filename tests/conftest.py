"""Set before anything loads torch: threads that wait without spinning, as an engine has them."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
