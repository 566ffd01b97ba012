"""descriptors.py: what is allowed, what is needed, and what is said about it. In processes of their own, whose limits are their own."""

import subprocess
import sys


def provide(call: str, *, soft: int, hard: int) -> str:
    """What a process with these limits prints and logs when it calls ``provide``."""
    program = f"""
import logging, resource
from shoal.net import descriptors
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    {call}
except Exception as error:
    print(type(error).__name__, error)
print("limits", *resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return done.stdout


def test_what_may_be_needed_later_is_a_warning_where_the_hard_limit_forbids_it() -> None:
    said = provide('descriptors.provide("rank 1", {"links": 20}, {"peers": 500})', soft=64, hard=100)
    assert "WARNING rank 1 may need 5" in said
    assert "500 for peers" in said
    assert "may have 100, its hard limit" in said
    assert "limits 100 100" in said


def test_the_soft_limit_grows_by_the_need_and_what_is_open_already_counts_for_the_job() -> None:
    said = provide('descriptors.provide("rank 0", {"links": 20}, {"peers": 5}, opened=7)', soft=64, hard=1000)
    assert f"limits {64 + 20 + 5 + 7 + 16} 1000" in said
    twice = 'descriptors.provide("rank 0", {"links": 20}, {}); descriptors.provide("rank 0", {"links": 21}, {})'
    assert f"limits {64 + 21 + 16} 1000" in provide(twice, soft=64, hard=1000)


def test_a_job_gets_what_it_needs_while_one_that_was_left_still_ends() -> None:
    call = (
        'descriptors.provide("rank 0", {"links": 100}, {}); import os; held = [os.dup(0) for _ in range(100)]; '
        'used = descriptors.in_use(); descriptors.provide("rank 0", {"links": 100}, {}); print("used", used)'
    )
    said = provide(call, soft=64, hard=1000)
    used = int(said.split("used ")[1].split()[0])
    assert used > 100
    assert f"limits {used + 100 + 16} 1000" in said


def test_a_server_takes_all_that_it_may() -> None:
    said = provide('descriptors.raise_to_the_most("shoal server")', soft=64, hard=1000)
    assert "INFO shoal server may have 1000 descriptors, its hard limit, instead of 64" in said
    assert "limits 1000 1000" in said
