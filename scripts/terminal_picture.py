#!/usr/bin/env python3
"""Draws what a terminal shows after a command, or while it runs, as an SVG picture for the documentation; prints it as text too.

The terminal is tmux's (Debian package tmux), the drawing is rich's. Run it with .deps/venv/bin/python.

Usage: scripts/terminal_picture.py [--columns 120] [--at SECONDS] [--last LINES] --output docs/images/x.svg 'COMMAND'
"""

import argparse
import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROWS = 200


def tmux(*arguments, **options):
    return subprocess.run(["tmux", "-L", "terminal-picture", *arguments], check=True, text=True, **options)


def screen(command, columns, seconds):
    """The lines on the screen once the command has ended, or after the seconds if there are any."""
    tmux("new-session", "-d", "-x", str(columns), "-y", str(ROWS), f"{command}\ntmux wait-for -S ended; sleep 3600")
    try:
        if seconds:
            time.sleep(seconds)
        else:
            tmux("wait-for", "ended")
        return tmux("capture-pane", "-e", "-p", capture_output=True).stdout.rstrip("\n").split("\n")
    finally:
        tmux("kill-server")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--columns", type=int, default=120)
    parser.add_argument("--at", type=float, help="seconds")
    parser.add_argument("--last", type=int, default=ROWS, help="lines")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    lines = screen(arguments.command, arguments.columns, arguments.at)[-arguments.last:]
    console = Console(record=True, width=arguments.columns)
    console.print(Text.assemble(("$ ", "green"), arguments.command))
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    console.save_svg(str(arguments.output), title="lora-train")


if __name__ == "__main__":
    main()
