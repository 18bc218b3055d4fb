"""Memory and disks that are too small, under real limits: said before the model is read, and before step 1."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from command import BINARY, ENVIRONMENT, expect_end, lora_train, used_by
from run_files import used_bytes
