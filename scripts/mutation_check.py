#!/usr/bin/env python3
"""Breaks the engine, or the saving, on purpose, one line at a time, and checks that the tests go red each time.

A copy of the source tree in build/mutation, built with preset ci, is patched, rebuilt incrementally and tested (`pytest -x`
over tests/parity, the file that ought to notice first; or a unit test, for suites saving and optimizer); then the patch is
taken back. A search text that does not occur exactly once in its file fails the script: the engine has changed, and the
mutation must follow it. So does a mutation that does not compile.

Suite compare: the engine's mutations again, which the equality part of bench/compare_hf_gpu.py has to notice, on a CPU; without
those that its runs do not depend on.

Suite durability: what docs/durability.md promises (scripts/durability_mutations.py), built at once; an environment variable
switches each mutation on. Suite ranks: that runs of several ranks are equal to one (scripts/rank_mutations.py), in the same way.

Usage: scripts/mutation_check.py [--suite engine | saving | optimizer | kernels | durability | ranks | compare] [--only NAME]... [--list | --texts] [--log FILE]
Committed results: tests/batteries/results/mutations_engine.txt (engine), tests/batteries/results/mutations_compare.txt,
tests/batteries/results/mutations_saving.txt (saving), tests/batteries/results/mutations_optimizer.txt (optimizer),
tests/batteries/results/mutations_kernels.txt (kernels),
tests/batteries/results/mutations_durability.txt (durability) and tests/batteries/results/mutations_ranks.txt (ranks).
Exit code 0 when the suite passes on the unchanged copy and fails on every mutation.
"""

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import durability_mutations
import rank_mutations

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build/mutation"
BUILD = COPY / "build/ci"
PYTHON = ROOT / ".deps/venv/bin/python"
COPIED = ["CMakeLists.txt", "CMakePresets.json", "bench", "cmake", "configs", "include", "scripts", "src", "tests"]
OTHER_TESTS = ("test_chat_", "test_malformed_templates", "test_message_objects", "test_template_expressions",
               "test_tokenizer_pipelines")  # parity of what is no engine
UNIT_TESTS = {"saving": "run_folder_test", "optimizer": "optim_test", "kernels": "kernels_test"}  # by suite
SWITCH = "LORA_TRAIN_MUTANT"
SWITCH_HEADER = "include/lora_train/mutant.h"
TARGETS = ["lora-train", "lora_train_engine", "lora-train-probe", "lora-train-generate-probe", "model-config-dump",
           "quantization-probe", "safetensors-verdict", "tokenizer-probe", "lora-train-chats"]


@dataclass
class Mutation:
    name: str
    notices: str  # the test file that ought to notice, and the others follow; or one of UNIT_TESTS
    edits: list   # (file, search, replacement)
    in_comparison: bool = True  # whether the runs of bench/compare_hf_gpu.py depend on it


MUTATIONS = [
    Mutation("no RoPE", "test_lora_gradients.py", [
        ("src/kernels/rope/rope.cpp", "at::arange(num_positions, inv_freq.options()).unsqueeze(1) * inv_freq;",
         "at::zeros({num_positions, 1}, inv_freq.options()) * inv_freq;")]),
    Mutation("no causal mask", "test_lora_gradients.py", [
        ("src/kernels/attention/attention_blocks.h",
         "{window > 0 ? std::max<std::int64_t>(0, last - window + 1) : 0, last + 1}", "{0, num_keys}"),
        ("src/kernels/attention/attention.cpp", "return diagonal == 0 && num_queries == num_keys && window == 0;",
         "return false;"),
        ("src/kernels/attention/attention.cpp", "auto visible = ones.tril(b.diagonal);", "auto visible = ones;")]),
    Mutation("leaking documents", "test_lora_gradients.py", [
        ("src/plan/setup/batch_feed.cpp", "batch.cu_seqlens.assign(ends.begin(), ends.end());",
         "batch.cu_seqlens = {0, ends.back()};"),
        ("src/plan/setup/batch_feed.cpp", "batch.cu_seqlens_device = view(parts.cu_seqlens, at::kInt);",
         "batch.cu_seqlens_device = at::tensor({0, ends.back()}, at::kInt);")]),
    Mutation("q and k adapters frozen", "test_lora_gradients.py", [
        ("src/model/projection.cpp", "    parts.push_back(",
         "    if (adapter.path.find(\"q_proj\") != std::string::npos || adapter.path.find(\"k_proj\") != std::string::npos) continue;\n"
         "    parts.push_back(")]),
    Mutation("dA dropped", "test_lora_gradients.py", [
        ("src/model/projection.cpp", "      unmasked.push_back(part);", "      if (adapter.rank < 0) unmasked.push_back(part);")]),
    Mutation("no bias correction", "test_lora_curves.py", [
        ("src/optim/adamw.cpp", "1.0 - std::pow(options.beta1, static_cast<double>(step))", "1.0 + 0.0 * options.beta1"),
        ("src/optim/adamw.cpp", "1.0 - std::pow(options.beta2, static_cast<double>(step))", "1.0 + 0.0 * options.beta2")]),
    Mutation("alpha wrong by 2", "test_lora_gradients.py", [
        ("src/lora/lora_plan.cpp", "found.push_back({rank, alpha / (", "found.push_back({rank, 2 * alpha / (")]),
    Mutation("warm-up off by one", "test_lora_curves.py", [
        ("src/optim/lr_schedule.cpp", "(static_cast<double>(current) / warmup)", "(static_cast<double>(current + 1) / warmup)")]),
    Mutation("no weight decay", "test_lora_curves.py", [
        ("src/optim/adamw.cpp", "block.lr_factor, block.decays ?", "block.lr_factor, block.decays && s == nullptr ?")]),
    Mutation("LoRA+ ratio dropped", "test_lora_curves.py", [
        ("src/lora/adapter_config.cpp", "profile.optimizer.loraplus_lr_ratio.value_or(1.0)", "0 * profile.optimizer.loraplus_lr_ratio.value_or(1.0) + 1")],
        in_comparison=False),
    Mutation("dft without probabilities", "test_loss_type.py", [
        ("src/run/train_step.cpp", "at::exp_out(weights, log_probs);", "weights.fill_(1);")], in_comparison=False),
    Mutation("averaging per micro-batch", "test_lora_gradients.py", [
        ("src/run/train_step.cpp", "    enqueue_micro_batch(context, batch, class_index);\n  }",
         "    context.scalars.device()[optim::kLossDenominator].fill_(\n"
         "        static_cast<double>(batch.num_trained_tokens() * std::ssize(plan.micro_batches)));\n"
         "    enqueue_micro_batch(context, batch, class_index);\n  }")]),
]


HYBRID_BLOCK, FAMILIES = "src/model/blocks/linear_attention.cpp", "src/model/families/families.cpp"
MUTATIONS += [Mutation(name, notices, [edit], in_comparison=False) for name, notices, *edit in [
    ("decays rounded to bf16", "test_hybrid.py", "include/lora_train/model/families/model_config.h",
     "return kind == WeightKind::kDecayRate || kind == WeightKind::kStepBias;", "return kind == WeightKind::kEmbedding;"),
    ("norms without the 1", "test_wrappers.py", FAMILIES, "config.norm_weight_offset = 1;\n  config.has_attention_gate", "config.has_attention_gate"),
    ("the convolution of another layer", "test_wrappers.py", HYBRID_BLOCK,
     "  kernels::causal_conv_forward(projected.qkv,", "  if (c.num_layers < 0) kernels::causal_conv_forward(projected.qkv,"),
    ("no gradient through the gate", "test_wrappers.py", HYBRID_BLOCK, "  at::Tensor no_state;", "  to.z.zero_();\n  at::Tensor no_state;"),
    ("states of the last owner of a row", "test_hybrid.py", "src/generate/cached_decoder.cpp", "    clear_states(new_rows);", "    (void)new_rows;"),
]]

DECODING = "src/kernels/quantized_weight/quantized_weight_cpu.cpp"
MUTATIONS += [Mutation(name, "test_quantized_weight.py", [(DECODING, *edit)], in_comparison=False) for name, *edit in [
    ("nibble order", "Words8{4, 0, 12, 8, 20, 16, 28, 24}", "Words8{0, 4, 8, 12, 16, 20, 24, 28}"),
    ("absmax off by one block", "weight.map, scale_of_block(weight, block),",
     "weight.map, scale_of_block(weight, block > 0 ? block - 1 : 0),"),
    ("nested offset left out", " + weight.nested_offset;", ";"),
    ("SCB by column", "static_cast<float>(codes[d]) * scale)",
     "static_cast<float>(codes[d]) * (static_cast<const float*>(weight.scales)[d % weight.num_rows] * kInt8Step) + 0 * scale)"),
    ("FP8 scale blocks transposed", "const float scale = scales[tile];",
     "const std::int64_t down = ((weight.num_rows - 1) >> weight.block_shift) + 1;\n"
     "      const float scale = scales[tile * down + (n >> weight.block_shift) * (1 - weight.tiles_per_row)];"),
]]


FILES, FOLDERS, CHECKPOINT = "src/base/file.cpp", "src/storage/atomic_folder.cpp", "src/run_folder/checkpoint.cpp"
MUTATIONS += [Mutation(name, UNIT_TESTS["saving"], [edit]) for name, *edit in [
    ("files not synced", FILES, 'checked(shown_, "cannot sync", [&] { return file_ops().sync(fd_); });', ""),
    ("folder not synced", FOLDERS, "  sync_folder(temporary_);\n", ""),
    ("name not synced", FOLDERS, "  holds_replaced_ = has_replaced_;\n  sync_folder(target_.parent_path());\n",
     "  holds_replaced_ = has_replaced_;\n"),
    ("output folder not synced", "src/base/file.cpp", "    sync_folder(parent);\n", ""),
    ("log not synced", CHECKPOINT, "{ sync_file(file); }", "{ static_cast<void>(file); }"),
    ("deleted in place", FOLDERS, "  rename_path(folder, temporary);\n", "  remove_tree(folder);\n"),
    ("replaced by deleting first", FOLDERS, "  if (exchange_paths(temporary, target)) return;\n", "  remove_tree(target);\n"),
    ("hashes not looked at", CHECKPOINT, "content.hash != expected.hash", "content.hash.empty()"),
    ("manifest not vouched for", "src/run_folder/manifest.cpp", "to_json(manifest) != text", "text.empty()"),
    ("newest without a look", CHECKPOINT, "if (problem.empty()) {", "{"),
    ("interruptions are errors", "src/base/file.cpp", "kMaxInterruptions = 1000", "kMaxInterruptions = 0"),
    ("short writes", FILES, "bytes.remove_prefix(static_cast<std::size_t>(put));", "bytes.remove_prefix(put > 0 ? bytes.size() : 0);"),
    ("rotation keeps one less", CHECKPOINT, "std::max<std::int64_t>(keep, 1)", "std::max<std::int64_t>(keep - 1, 1)"),
]]

ADAMW_8BIT = "src/optim/adamw_cpu.cpp"
MUTATIONS += [Mutation(name, UNIT_TESTS["optimizer"], [edit]) for name, *edit in [
    ("decay before instead of after", ADAMW_8BIT, "(params[i] + f.step_size * (m / (std::sqrt(v) + f.epsilon))) * f.decay",
     "params[i] * f.decay + f.step_size * (m / (std::sqrt(v) + f.epsilon))"),
    ("sign rule left out", ADAMW_8BIT, "code -= values[i] < 0 && code == 127 ? 1 : 0;", ""),
    ("embeddings in 8 bits", "src/optim/adamw.cpp", "&& !block.is_embedding", ""),
]]

# On a CPU with AVX-512.
PACKED, BLOCKS = "src/kernels/gemm/packed_gemm_cpu.cpp", "src/kernels/attention/attention_blocks.h"
FORWARD, BACKWARD = "src/kernels/attention/attention_forward_cpu.cpp", "src/kernels/attention/attention_backward_cpu.cpp"
MUTATIONS += [Mutation(name, UNIT_TESTS["kernels"], [edit]) for name, *edit in [
    ("a slab forgets the earlier ones", PACKED, "width, width, slab.k > 0}", "width, width, false}"),
    ("the last odd row left out", PACKED, "rows = kBlockRows; done < num_rows; rows /= 2", "rows = kBlockRows; done < num_rows && rows > 1; rows /= 2"),
    ("one column for sixteen", PACKED, "(is_inside ? j + i : 0)", "(is_inside ? j : 0)"),
    ("the residual of a biased row left out", PACKED, "finish_row<true, true>(", "finish_row<true, false>("),
    ("the last panel twice", PACKED, "packed + group.place(i, slab), panel.padded, tile", "packed + group.place(group.num_panels - 1, slab), panel.padded, tile"),
    ("a window one too wide", BLOCKS, "last - window + 1)", "last - window)"),
    ("earlier keys not rescaled", FORWARD, "if (largest != row.largest) {", "if (largest < row.largest) {"),
    ("dk without the scale", BACKWARD, "sums.width, problem.call.scale, group.head_size, dk[key]", "sums.width, 1.0F, group.head_size, dk[key]"),
    ("delta left out", BACKWARD, "_mm512_mul_ps(p, _mm512_sub_ps(load16(tile.dp + at), delta))", "_mm512_mul_ps(p, load16(tile.dp + at))"),
    ("later parts of a group left out", BACKWARD, "          sums.add(part_sums);\n", ""),
    ("sums of a tile not rescaled", "src/kernels/cross_entropy/cross_entropy_cpu.cpp",
     "    if (const float largest = _mm512_reduce_max_ps(most); largest > s.largest) {\n      s.sum *=",
     "    if (const float largest = _mm512_reduce_max_ps(most); largest > s.largest) {\n      s.sum = s.sum + 0 *"),
    ("exponents one off", "src/kernels/launch/avx512.h", "_mm512_maskz_scalef_ps(is_normal, p, x)", "_mm512_maskz_scalef_ps(is_normal, p, f)"),
    ("an odd token left out", "src/kernels/lora/lora_cpu.cpp", "product.num_b_rows = N;", "product.num_b_rows = N / 2 * 2;"),
    ("adapters copied without their scale", "src/kernels/cast/cast_cpu.cpp", "store(target + i, source[i] * scale)",
     "store(target + i, source[i] + 0 * scale)"),
]]


SWITCHED = {suite: [Mutation(name, notices, [(file, search, replacement.replace("MUTANT", f'is_mutant("{name}")'))
                                             for file, search, replacement in edits])
                    for name, notices, edits in module.MUTATIONS]
            for suite, module in (("durability", durability_mutations), ("ranks", rank_mutations))}


def copy_sources():
    """Copies what changed since the last time; unchanged files keep their time, so that ninja rebuilds little."""
    COPY.mkdir(parents=True, exist_ok=True)
    if not (COPY / ".deps").exists():
        (COPY / ".deps").symlink_to(ROOT / ".deps")
    wanted = {file.relative_to(ROOT) for name in COPIED for file in files_under(ROOT / name)}
    for relative in sorted(wanted):
        file, target = ROOT / relative, COPY / relative
        if not target.exists() or target.read_bytes() != file.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    for name in COPIED:
        for file in files_under(COPY / name):
            if file.relative_to(COPY) not in wanted:
                file.unlink()


def files_under(path):
    found = [path] if path.is_file() else path.rglob("*")
    return [file for file in found if file.is_file() and "__pycache__" not in file.parts]


def build(targets):
    if not (BUILD / "build.ninja").exists():
        run(["cmake", "--preset", "ci", "-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF"])  # a mutation may leave a name unused
    run(["cmake", "--build", BUILD, "--target", *targets])


def run(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=COPY)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{(done.stdout + done.stderr)[-4000:]}")


def run_suite(first, stop_early):
    """Returns (passed, the line that says why or how many). `first` runs alone, before the other files."""
    if first in UNIT_TESTS.values():
        return run_googletest(first, [])
    files = sorted(file for file in (ROOT / "tests/parity").glob("test_*.py") if not file.name.startswith(OTHER_TESTS))
    others = [file for file in files if file.name != first]
    passed, line = run_pytest([file for file in files if file.name == first], stop_early) if first else (True, "")
    return run_pytest(others, stop_early) if passed else (passed, line)


def run_pytest(files, stop_early, arguments=(), environment=None):
    command = [PYTHON, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *(["-x"] if stop_early else []), *arguments,
               *files]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True,
                          env=environment or dict(os.environ, LORA_TRAIN_BIN=str(BUILD / "bin")))
    if done.returncode not in (0, 1):
        sys.exit(f"pytest itself failed ({done.returncode}):\n{(done.stdout + done.stderr)[-4000:]}")
    failed = re.findall(r"^FAILED \S*?(test_\w+\.py::.*?)(?: - (.*))?$", done.stdout, re.M)
    last = done.stdout.strip().splitlines()[-1]
    return done.returncode == 0, f"{failed[0][0]}: {failed[0][1]}"[:160] if failed else last


def run_comparison():
    """bench/compare_hf_gpu.py's equality, on a CPU."""
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run([PYTHON, ROOT / "bench/compare_hf_gpu.py", "--device", "cpu", "--tiny", "--parts", "equality", "--work",
                               work], capture_output=True, text=True, env=dict(os.environ, LORA_TRAIN_BIN=str(BUILD / "bin")))
    return done.returncode == 0, (done.stdout.strip().splitlines() or ["nothing printed"])[-1][:160]


def run_googletest(name, arguments, environment=None):
    try:
        done = subprocess.run([BUILD / "bin" / name, "--gtest_brief=1", *arguments], capture_output=True, text=True, timeout=300,
                              env=environment)
    except subprocess.TimeoutExpired:
        return False, "did not end in 300 s"
    failed = re.findall(r"^\[  FAILED  \] ([^\s,]+)(?:,.*)? \(", done.stdout, re.M)
    lines = [line for line in done.stdout.strip().splitlines() if not line.startswith("[  SKIPPED ]")]
    return done.returncode == 0, ", ".join(failed)[:160] if failed else lines[-1] if lines else f"exit code {done.returncode}"


def check_texts(mutations):
    """Errors, before anything is built: a search text that is not there exactly once, and a replacement with a name that occurs
    nowhere in the sources."""
    def names_in(text):
        return set(re.findall(r"[A-Za-z_]\w*", text))

    known = {"is_mutant"}.union(*(names_in(file.read_text()) for folder in ("include", "src") for file in files_under(ROOT / folder)
                          if file.suffix in (".h", ".cpp")))
    wrong = [f"mutation \"{mutation.name}\": the text occurs {count} times in {name}, expected 1. "
             f"Adjust scripts/mutation_check.py to the source:\n{search}"
             for mutation in mutations for name, search, _ in mutation.edits
             if (count := (ROOT / name).read_text().count(search)) != 1]
    wrong += [f"mutation \"{mutation.name}\": the sources have no {', '.join(sorted(unknown))}. Adjust scripts/mutation_check.py"
              for mutation in mutations for _, _, replacement in mutation.edits
              if (unknown := names_in(replacement.replace(f'"{mutation.name}"', "")) - known)]
    if wrong:
        sys.exit("\n".join(wrong))


def apply(mutation):
    """Patches the copy; returns {file: original text}."""
    originals = {}
    for name, search, replacement in mutation.edits:
        path = COPY / name
        text = path.read_text()
        if text.count(search) != 1:
            sys.exit(f"mutation \"{mutation.name}\": an earlier one has changed its text in {name}")
        originals.setdefault(path, text)
        path.write_text(text.replace(search, replacement))
    return originals


def restore(originals):
    for path, text in originals.items():
        path.write_text(text)


def check(mutation, report, compares):
    start = time.monotonic()
    originals = apply(mutation)
    try:
        build([mutation.notices] if mutation.notices in UNIT_TESTS.values() else TARGETS)
        passed, line = run_comparison() if compares else run_suite(mutation.notices, stop_early=True)
    finally:
        restore(originals)
    report(f"{mutation.name:26s} {'NOT NOTICED' if passed else 'red':11s} {time.monotonic() - start:5.0f} s  {line}")
    return not passed


def apply_switched(mutations):
    """All of them at once; returns {file: original text}."""
    (COPY / SWITCH_HEADER).write_text(
        f"""#pragma once
#include <cstdlib>
#include <string_view>
inline bool is_mutant(std::string_view name) {{
  const char* on = std::getenv("{SWITCH}");
  return on != nullptr && name == on;
}}
""")
    originals = {}
    for mutation in mutations:
        for path, text in apply(mutation).items():
            originals.setdefault(path, text)
    for path in originals:
        path.write_text('#include "lora_train/mutant.h"\n' + path.read_text())
    return originals


def run_noticing(notices, mutant):
    """Runs the tests that ought to notice, with this mutation on (none: ""). Returns (passed, the line that says why)."""
    name, _, filters = notices.partition(" ")
    environment = dict(os.environ, LORA_TRAIN_BIN=str(BUILD / "bin"), **{SWITCH: mutant})
    if not name.endswith(".py"):
        return run_googletest(name, [f"--gtest_filter={filters}"], environment)
    return run_pytest([ROOT / "tests/integration" / name], True, [*(["-k", filters] if filters else [])], environment)


def check_switched(chosen, report):
    originals = apply_switched(chosen)
    try:
        tests = sorted({mutation.notices for mutation in chosen})
        build(["lora-train", "lora_train_engine", "slow_sync", "full_disk", *{test.split()[0] for test in tests if not test.split()[0].endswith(".py")}])
        passed = True
        for test in tests:
            is_green, line = run_noticing(test, "")
            report(f"{'unchanged':36s} {'green' if is_green else 'RED':11s}          {test}: {line}")
            passed = passed and is_green
        noticed = []
        for mutation in chosen:
            start = time.monotonic()
            is_green, line = run_noticing(mutation.notices, mutation.name)
            report(f"{mutation.name:36s} {'NOT NOTICED' if is_green else 'red':11s} {time.monotonic() - start:5.0f} s  {line}")
            noticed.append(not is_green)
    finally:
        restore(originals)
    return passed, noticed


def check_one_by_one(suite, chosen, report):
    unit_test = UNIT_TESTS.get(suite)
    build([unit_test] if unit_test else TARGETS)
    compares = suite == "compare"
    passed, line = run_comparison() if compares else run_suite(unit_test or "", stop_early=False)
    report(f"{'unchanged':26s} {'green' if passed else 'RED':11s}          {line}")
    return passed, [check(mutation, report, compares) for mutation in chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=["engine", *UNIT_TESTS, *SWITCHED, "compare"], default="engine")
    parser.add_argument("--only", action="append", help="only this mutation; repeatable")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--texts", action="store_true", help="only check that every mutation of every suite still fits the source")
    parser.add_argument("--log", help="also write the table to this file")
    args = parser.parse_args()
    if args.texts:
        check_texts(MUTATIONS + sum(SWITCHED.values(), []))
        return
    unit_test = UNIT_TESTS.get(args.suite)
    suite = SWITCHED[args.suite] if args.suite in SWITCHED else [
        mutation for mutation in MUTATIONS
        if (mutation.notices == unit_test if unit_test else mutation.notices not in UNIT_TESTS.values())
        and (mutation.in_comparison or args.suite != "compare")]
    if args.list:
        print("\n".join(mutation.name for mutation in suite))
        return
    unknown = set(args.only or []) - {mutation.name for mutation in suite}
    if unknown:
        sys.exit(f"no such mutation: {', '.join(sorted(unknown))}. See --list.")
    chosen = [mutation for mutation in suite if not args.only or mutation.name in args.only]
    check_texts(chosen)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of torch that wait must not spin
    log = open(args.log, "w") if args.log else None

    def report(line):
        print(line, flush=True)
        if log:
            log.write(line + "\n")
            log.flush()

    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    report(f"{datetime.datetime.now():%Y-%m-%d %H:%M}, commit {commit.stdout.strip()}: scripts/mutation_check.py --suite {args.suite}")
    copy_sources()
    if args.suite in SWITCHED:
        passed, noticed = check_switched(chosen, report)
    else:
        passed, noticed = check_one_by_one(args.suite, chosen, report)
    report(f"{sum(noticed)} of {len(chosen)} mutations noticed")
    sys.exit(0 if passed and all(noticed) else 1)


if __name__ == "__main__":
    main()
