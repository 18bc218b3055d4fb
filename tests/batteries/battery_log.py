"""The output of a battery: printed, and kept in the file that is committed."""

import datetime
import subprocess
import sys


class Log:
    def __init__(self, file, root, is_kept=False):
        """`file` may be None; what it has is kept in front where `is_kept`. The first line says when, of which commit, and by which
        command."""
        self.file, self.lines = file, file.read_text().splitlines() if is_kept and file and file.exists() else []
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True).stdout
        self.say(f"date {datetime.datetime.now():%Y-%m-%d %H:%M}, commit {commit.strip()}, command: {' '.join(sys.argv)}")

    def say(self, line):
        self.lines.append(line)
        print(line, flush=True)
        if self.file:
            self.file.write_text("\n".join(self.lines) + "\n")
