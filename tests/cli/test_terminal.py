"""What a person at a terminal sees while a run lasts: of how many queries, how long still, rows with their numbers."""

import os
import pty
import re
import subprocess
import sys

import pytest

SLOW = """
import time
import unsoftmax as us

head = us.open("demo:attention,width=6,seed=3")


class Slow:
    width = 6

    def __call__(self, X):
        time.sleep(0.04)
        return head(X)


target = Slow()
"""


def seen(words, folder):
    """The exit code, and all that a terminal of 100 columns was sent on stderr."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "100", "TERM": "xterm"}
    command = [sys.executable, "-m", "unsoftmax", *words]
    run = subprocess.Popen(command, cwd=folder, env=environment, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return run.wait(timeout=60), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())


@pytest.mark.parametrize(("words", "of"), [(["--budget", "900"], "of at most 900 queries"), ([], r"of about \d{3} queries")])
def test_a_recovery_tells_of_how_many_and_how_long(tmp_path, words, of):
    (tmp_path / "slow.py").write_text(SLOW)
    code, said = seen(["recover", "slow.py:target", *words], tmp_path)
    assert code == 0
    assert re.search(rf"columns +\d+ {of}", said), said
    assert re.search(rf"{of} .*0:00:\d\d 0:00:\d\d", said), said  # elapsed, then left


def test_rows_of_an_audit_come_with_their_numbers(tmp_path):
    words = ["audit", "demo:attention,width=3", "--defence", "quota 5", "--budget", "900", "--seed", "1"]
    code, said = seen(words, tmp_path)
    assert code == 0
    assert re.search(r"none +exact +\d+ queries +error \d\.\de-1\d", said), said
    assert re.search(r"quota 5 +budget spent +\d+ queries +no copy", said), said
    assert re.search(r"defences .*[12]/2", said), said
