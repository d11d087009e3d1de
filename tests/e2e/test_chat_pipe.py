"""`branchwork chat` through a pipe, as a script uses it: a process of its own on the real model."""

from __future__ import annotations

import json
import subprocess
import sys


def test_a_piped_chat_answers_from_its_history() -> None:
    command = [sys.executable, "-m", "branchwork", "chat", "--json", "--max-tokens", "6"]
    lines = "Name a colour.\n/undo\nName a colour.\nAnd another one?\n"
    done = subprocess.run(
        command, check=False, input=lines, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    first, again, more = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["reply"].strip()
    assert again["reply"] == first["reply"]
    usage = again["usage"]
    assert usage["cached_tokens"] == usage["prompt_tokens"] - 1
    # All that was said but the last drawn token, which is computed with what follows it.
    assert more["turn"] == 2
    assert more["usage"]["cached_tokens"] >= usage["prompt_tokens"] + usage["completion_tokens"] - 2
    assert "undone: Name a colour." in done.stderr
