"""Side-by-side measurements of Runnel, its peers and the file system, in alternating rounds on one machine.

Rule 1: nothing here decides whether a test passes; a number is read by people, beside the numbers of the same run.
Rule 2: a peer that can't be had is named as missing, never left out.
Rule 3: load comes from processes of its own, and messages are made before the clock starts.
"""
