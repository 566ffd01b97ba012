"""Timelines of a job: what its ranks have recorded (``shoal.job.trace``), in one file on one clock.

``meeting``: the ranks come together. ``clocks``: how far their clocks are apart. ``collecting``: recordings come to rank
0. ``waits``: who called each operation last. ``chrome``: the file. ``live``: what there is of it while a recording goes
on. ``control``: when each of this happens.

May import what ``shoal.ops`` may, and that.
"""
