"""Patterns for the sentences with which ALFWorld tells what stands on, or lies in, a receptacle.

Groups: the receptacle's name (`countertop 1`) and, where its contents are told, the list that
`sentences.names_in` reads.
"""

from __future__ import annotations

import re

SURFACE = re.compile(r"On the ([^,.]+), you see ([^.]*)\.")
OPEN = re.compile(r"The ([^,.]+) is open\. In it, you see ([^.]*)\.")
CLOSED = re.compile(r"The ([^,.]+) is closed\.")
