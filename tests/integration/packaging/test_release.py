"""`cmake --install`, and the release archive made of it (scripts/make_release.sh): each works from where it lies."""

import hashlib
import json
import os
import select
import shutil
import subprocess
import sys

import pytest

import terminals
from command import BINARY, ROOT

BUILD = BINARY.parents[1]
VENV = os.path.dirname(sys.executable)


def run(*command, **keywords):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, **keywords)


def make_release(folder):
    done = run(ROOT / "scripts/make_release.sh", "--build", BUILD, "--output-dir", folder, "--level", 0)
    assert done.returncode == 0, done
    return done


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """(folder of the files, what make_release.sh printed)"""
    folder = tmp_path_factory.mktemp("release")
    return folder, make_release(folder)


@pytest.fixture(scope="module")
def unpacked(release, tmp_path_factory):
    folder = tmp_path_factory.mktemp("another place")
    shutil.unpack_archive(next(release[0].glob("*.tar.xz")), folder)
    return next(folder.iterdir())


def train(program, folder):
    """Two steps, in an environment whose python3 has torch."""
    example = ROOT / "examples/tiny-math"
    env = {"HOME": str(folder), "PATH": f"{program.parent}:{VENV}:/usr/bin:/bin"}
    done = run("lora-train", "train", "--model", example / "model", "--train-data", example / "train.jsonl", "--output-dir", folder / "run",
               "--max-steps", 2, "--device", "cpu", "--precision", "fp32", "--json", env=env, executable=program)
    assert done.returncode == 0, done
    assert json.loads(done.stdout.splitlines()[-1])["step"] == 2 and (folder / "run/adapter/adapter_model.safetensors").exists()


def test_installed_tree_works_without_an_environment(tmp_path):
    """lib/torch_path names the LibTorch of the build."""
    assert run("cmake", "--install", BUILD, "--prefix", tmp_path / "here").returncode == 0
    (tmp_path / "here").rename(tmp_path / "there")
    program = tmp_path / "there/bin/lora-train"
    assert program.is_symlink()
    version = run(program, "--version", env={"PATH": "/nowhere"})
    assert "from lib/torch_path" in version.stdout and ", loaded" in version.stdout, version
    assert run(program, "check", "--list").stdout == run(BINARY, "check", "--list").stdout
    assert run(program, "sweep", "--help").returncode == 0
    binaries = {path.relative_to(tmp_path / "there") for path in (tmp_path / "there").rglob("*") if path.name.endswith("_test")}
    assert not binaries, "a build of tests installs none"


def test_archive_trains_where_it_is_unpacked(unpacked, tmp_path):
    train(unpacked / "bin/lora-train", tmp_path)


def test_archive_is_complete_and_names_no_folder_of_this_machine(release, unpacked):
    assert {path.name for path in unpacked.iterdir()} == {"bin", "lib", "share", "LICENSE", "INSTALL"}
    assert not list(unpacked.rglob("*_path"))
    install = (unpacked / "INSTALL").read_text()
    assert len(install.splitlines()) <= 10 and "@" not in install and "Python 3.10 to 3.14" in install
    assert (unpacked / "share/doc/lora-train/third-party/libpng-dev/copyright").stat().st_size > 500
    program = "lib/lora-train/lora-train: Debian 12, Ubuntu 22.04, Ubuntu 24.04"
    assert program in release[1].stderr, release
    for file in (*release[0].glob("*.whl"), *release[0].glob("*.tar.xz")):
        checked = run(ROOT / "scripts/checks/check_portable.py", file)
        assert checked.returncode == 0 and checked.stdout.count(": Debian 12, Ubuntu 22.04, Ubuntu 24.04") > 2, checked


def test_same_build_gives_the_same_bytes(release, tmp_path):
    os.utime(BINARY.parent / "configs/h100.yaml")
    make_release(tmp_path)
    sums = (release[0] / "SHA256SUMS").read_text()
    assert (tmp_path / "SHA256SUMS").read_text() == sums and len(sums.splitlines()) == 2
    for line in sums.splitlines():
        digest, name = line.split()
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("absent", ["lib/lora-train/lib/liblora_train_engine.so", "lib/lora-train/lib/sweep.sh",
                                    "lib/lora-train/configs/h100.yaml", "share/doc/lora-train/third-party/libpng-dev"])
def test_build_that_lacks_something_is_refused_by_name(unpacked, tmp_path, absent):
    """A build whose installation is this tree without one thing."""
    build = tmp_path / "build"
    tree = shutil.copytree(unpacked, build / "tree", symlinks=True)
    shutil.rmtree(tree / absent) if (tree / absent).is_dir() else (tree / absent).unlink()
    (build / "cmake_install.cmake").write_text(f'file(COPY "{tree}/" DESTINATION "${{CMAKE_INSTALL_PREFIX}}")\n')
    done = run(ROOT / "scripts/stage_program.sh", "--build", build, tmp_path / "staged")
    assert done.returncode == 1 and os.path.basename(absent) in done.stderr and len(done.stderr.splitlines()) == 1, done


COMPLETIONS = {
    "bash": ("bash-completion/completions/lora-train",
             'source "$1"; COMP_WORDS=(lora-train tok) COMP_CWORD=1; _lora_train; echo "${COMPREPLY[@]}"', "tokenize"),
    "fish": ("fish/vendor_completions.d/lora-train.fish", 'source $argv[1]; complete -C "lora-train tok"', "tokenize"),
}


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_completions_are_where_shells_look(unpacked, shell):
    file, script, word = COMPLETIONS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    file = unpacked / "share" / file
    arguments = ("-c", script, "bash", file) if shell == "bash" else ("-c", script, file)
    done = run(shell, *arguments, env={"PATH": f"{unpacked}/bin:/usr/bin:/bin", "HOME": "/nonexistent"})
    assert word in done.stdout.split(), done


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_completes_at_the_first_tab(unpacked, tmp_path):
    """In a terminal, with the folder of functions in fpath."""
    (tmp_path / ".zshrc").write_text(f'fpath=("{unpacked}/share/zsh/site-functions" $fpath)\nautoload -Uz compinit\ncompinit -u\nPS1="> "\n')
    ours, theirs = terminals.open_terminal(columns=80)
    env = {"PATH": f"{unpacked}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb"}
    with subprocess.Popen(["zsh", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=env) as zsh:
        os.close(theirs)

        def seen_until(text):
            seen = b""
            while text not in seen and select.select([ours], [], [], 20)[0]:
                seen += terminals.read_part(ours)
            return seen

        seen_until(b"> ")  # what is typed earlier does not count as a Tab
        os.write(ours, b"lora-train tok\t")
        seen = seen_until(b"enize")
        zsh.kill()
    os.close(ours)
    assert b"enize" in seen, seen
