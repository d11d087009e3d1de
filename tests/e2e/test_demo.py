"""The README's first command, as a user runs it: a process of its own on the real model."""

from __future__ import annotations

import json
import subprocess
import sys


def test_the_demo_sorts_answers_judges_and_shares() -> None:
    command = [sys.executable, "-m", "branchwork", "demo", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [record["call"] for record in found["calls"]]
    assert names[0] == "category"
    assert sorted(names[1:]) == sorted(
        f"{name}[{i}]" for name in ("reply", "verdict") for i in range(3)
    )
    assert found["values"]["category"] == " billing"
    assert all(reply.strip() for reply in found["values"]["reply"])
    assert found["text"].endswith(f"Reply:{found['values']['reply'][found['returned']['best']]}\n")
    # The rules and examples went through the model once.
    first, *others = found["calls"]
    for record in others:
        assert record["cached_tokens"] >= first["prompt_tokens"]
    assert found["savings"]["cached_tokens"] > 0.8 * found["savings"]["prompt_tokens"]
    # The engine's own line goes to standard error, so that standard output stays one document.
    assert "branchwork: SmolLM2" in done.stderr
