"""Pseudo-terminals for programs that look at their terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

from command import ENVIRONMENT

COLOURFUL = dict({key: value for key, value in ENVIRONMENT.items() if key != "NO_COLOR"}, TERM="xterm")


def set_columns(fd, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def open_terminal(columns):
    """(our descriptor, the program's)."""
    ours, theirs = pty.openpty()
    set_columns(theirs, columns)
    return ours, theirs


def read_part(fd):
    """The bytes that are there, after waiting for the first; b"" once nobody has the other side."""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def parts_of(command, columns, environment):
    """What a program writes onto a terminal that is so wide, in the parts in which it comes."""
    ours, theirs = open_terminal(columns)
    process = subprocess.Popen(list(map(str, command)), stdout=theirs, env=environment)
    os.close(theirs)
    parts = list(iter(lambda: read_part(ours), b""))
    os.close(ours)
    assert process.wait(timeout=300) == 0
    return parts
