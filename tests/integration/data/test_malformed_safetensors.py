"""Malformed model.safetensors files: exit code, place and words of each; the verdict on the file is the reference's.

The reference is the safetensors package. It refuses every file here but those under `MODEL`, which are good files of
another model, and those under `STRICTER`, which ours refuses on purpose.
"""

import gzip
import io
import json
import os
import pickle
import struct
import zipfile

import pytest
from command import CONFIG, model_tensors
from malformed import Case, assert_enough, assert_refused, fifo, ids, run_quickly
from safetensors import safe_open

NORM, BIAS = "model.norm.weight", "model.layers.0.self_attn.q_proj.bias"  # both F32 [32], 128 bytes
FIRST, UP = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"
MAX_HEADER = 100_000_000


class Weights:
    """The header and the data of a good file; a case changes them, or the bytes that they make."""

    def __init__(self, path):
        self.path, self.header, self.data = path, {"__metadata__": {"format": "pt"}}, b""
        for name, tensor in model_tensors().items():
            self.add(name, "F32", list(tensor.shape), tensor.tobytes())

    def add(self, name, dtype, shape, content):
        begin, self.data = len(self.data), self.data + content
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(self.data)]}

    def remove(self, name):
        """Takes out a tensor with its bytes."""
        begin, end = self.header.pop(name)["data_offsets"]
        self.data = self.data[:begin] + self.data[end:]
        for key, entry in self.header.items():
            if key != "__metadata__" and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]

    def text(self):
        return json.dumps(self.header)

    def content(self, header=None, length=None):
        header = self.text() if header is None else header
        header = header.encode() if isinstance(header, str) else header
        return struct.pack("<Q", len(header) if length is None else length) + header + self.data

    def write(self, content=None):
        self.path.write_bytes(self.content() if content is None else content)


def entry(name=NORM, **changes):
    """Changes keys of one tensor's entry; None takes one out."""
    def make(weights):
        for key, value in changes.items():
            if value is None:
                del weights.header[name][key]
            else:
                weights.header[name][key] = value
        weights.write()
    return make


def top(**entries):
    def make(weights):
        weights.header.update(entries)
        weights.write()
    return make


def header(change):
    """The text of the header through change(text)."""
    return lambda weights: weights.write(weights.content(change(weights.text())))


def length(value):
    return lambda weights: weights.write(weights.content(length=value(weights) if callable(value) else value))


def content(change):
    """The bytes of the file through change(bytes)."""
    return lambda weights: weights.write(change(weights.content()))


def moved(name, begin, end):
    """Shifts the offsets of a tensor by so many bytes."""
    def make(weights):
        offsets = weights.header[name]["data_offsets"]
        entry(name, data_offsets=[offsets[0] + begin, offsets[1] + end])(weights)
    return make


def twice(name):
    """A second entry of the same name and range at the end of the header."""
    return header(lambda text: text[:-1] + f', "{name}": ' + json.dumps(json.loads(text)[name]) + "}")


def retyped(name, dtype, size):
    """The tensor in another type of `size` bytes an element, with as many elements."""
    def make(weights):
        shape = weights.header[name]["shape"]
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        weights.remove(name)
        weights.add(name, dtype, shape, bytes(count * size))
        weights.write()
    return make


def reshaped(name, shape):
    return entry(name, shape=shape)


def renamed(change):
    def make(weights):
        weights.header = {key if key == "__metadata__" else change(key): value for key, value in weights.header.items()}
        weights.write()
    return make


def without(name):
    def make(weights):
        weights.remove(name)
        weights.write()
    return make


def shared_range(weights):
    """lm_head on the bytes of the embedding, as a writer that saves tied weights without thinking does."""
    weights.header["lm_head.weight"] = weights.header[FIRST]
    weights.write()


def sparse(size, first=b""):
    def make(weights):
        weights.write(first)
        os.truncate(weights.path, size)
    return make


def torch_zip(weights):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    weights.write(buffer.getvalue())


def link_to(target):
    return lambda weights: os.symlink(target, weights.path)


DAMAGED = "download"
LENGTH = [
    Case("empty_file", content(lambda b: b""), "", "0 bytes"),
    Case("seven_bytes", content(lambda b: b[:7]), "", "7 bytes"),
    Case("length_alone", content(lambda b: b[:8]), "", "truncated"),
    Case("length_of_zero", length(0), "", "not valid UTF-8 JSON at byte"),
    Case("length_one_past_the_file", length(lambda w: len(w.content()) - 7), "", "truncated"),
    Case("length_of_2_to_the_64_minus_1", length(2**64 - 1), "", "18446744073709551615"),
    Case("length_of_minus_8", length(2**64 - 8), "", "at most 100000000"),
    Case("length_one_over_the_limit", sparse(MAX_HEADER + 100, struct.pack("<Q", MAX_HEADER + 1)), "", "at most 100000000"),
    Case("length_in_big_endian", content(lambda b: b[:8][::-1] + b[8:]), "", "at most 100000000"),
    Case("length_one_too_small", length(lambda w: len(w.text()) - 1), "", "not valid UTF-8 JSON"),
    Case("length_one_too_large", length(lambda w: len(w.text()) + 1), "", "not valid UTF-8 JSON"),
    Case("cut_inside_the_header", content(lambda b: b[:300]), "", "truncated"),
    Case("cut_after_the_header", lambda w: w.write(w.content()[:8 + len(w.text())]), "", "only 0 follow"),
    Case("cut_in_the_middle", content(lambda b: b[:len(b) // 2]), "", "truncated"),
    Case("last_byte_missing", content(lambda b: b[:-1]), "", "truncated"),
    Case("one_byte_more", content(lambda b: b + b"\n"), "", "1 bytes follow the last tensor"),
    Case("four_stray_bytes", content(lambda b: b + b"\xde\xad\xbe\xef"), "", "4 bytes follow the last tensor"),
    Case("file_appended_to_itself", content(lambda b: b + b), "", "follow the last tensor"),
    Case("only_zeros", content(lambda b: bytes(len(b))), "", "not valid UTF-8 JSON at byte 9"),
]

OTHER_FILES = [
    Case("git_lfs_pointer", content(lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), "",
         "git lfs pull"),
    Case("html_page", content(lambda b: b"<!DOCTYPE html><html><title>401 Unauthorized</title></html>"), "", DAMAGED),
    Case("gzip", content(gzip.compress), "", "at most 100000000"),
    Case("torch_zip", torch_zip, "", DAMAGED),
    Case("bare_pickle", content(lambda b: pickle.dumps({"a": [1.0] * 99}, protocol=4)), "", DAMAGED),
    Case("gguf", content(lambda b: b"GGUF\x03\0\0\0" + b), "", DAMAGED),
    Case("index_in_its_place", content(lambda b: b'{"metadata": {}, "weight_map": {}}'), "", DAMAGED),
]

TEXT = [
    Case("name_that_is_not_utf8", lambda w: w.write(w.content(w.text().encode().replace(b"norm", b"n\xffrm", 1))), "",
         "not valid UTF-8 JSON at byte"),
    Case("header_in_utf16", lambda w: w.write(w.content(w.text().encode("utf-16-le"))), "", "NUL"),
    Case("byte_order_mark", header(lambda t: "\ufeff" + t), "", "byte order mark"),
    Case("padded_with_zeros", header(lambda t: t + "\0\0\0"), "", "NUL"),
    Case("header_is_a_list", header(lambda t: "[" + t + "]"), "", "the header is an array"),
    Case("header_is_null", header(lambda t: "null"), "", "the header is null"),
    Case("header_never_closed", header(lambda t: t[:-1] + " "), "", "not valid UTF-8 JSON"),
    Case("two_objects", header(lambda t: t + t), "", "not valid UTF-8 JSON"),
    Case("trailing_comma", header(lambda t: t[:-1] + ",}"), "", "not valid UTF-8 JSON"),
    Case("python_quotes", header(lambda t: t.replace('"', "'")), "", "not valid UTF-8 JSON at byte 10"),
    Case("half_of_a_surrogate_pair", header(lambda t: t.replace("norm", "n\\ud83d", 1)), "", "not valid UTF-8 JSON"),
    Case("nesting_without_end", header(lambda t: t[:-1] + ', "x": ' + '{"a":' * 50_000), ": x", "nested deeper"),
    Case("many_open_lists", header(lambda t: "[" * 100_000), "", "the header is an array"),
]

ENTRIES = [
    Case("metadata_of_a_number", top(__metadata__={"epoch": 3}), "", "only strings"),
    Case("metadata_of_null", top(__metadata__={"format": None}), "", "only strings"),
    Case("metadata_is_a_list", top(__metadata__=["pt"]), "", "__metadata__"),
    Case("metadata_twice", header(lambda t: t[:-1] + ', "__metadata__": {}}'), "", "__metadata__ appears twice"),
    Case("entry_is_text", top(x="F32"), "", '"x" is a string'),
    Case("entry_is_null", top(x=None), "", '"x" is null'),
    Case("entry_is_empty", top(x={}), ": x", 'no "dtype"'),
    Case("no_dtype", entry(dtype=None), f": {NORM}", 'no "dtype"'),
    Case("no_shape", entry(shape=None), f": {NORM}", 'no "shape"'),
    Case("no_offsets", entry(data_offsets=None), f": {NORM}", 'no "data_offsets"'),
    Case("dtype_unknown", entry(dtype="F33"), f": {NORM}", 'unknown dtype "F33"'),
    Case("dtype_in_torch_words", entry(dtype="float32"), f": {NORM}", 'unknown dtype "float32"'),
    Case("dtype_is_a_number", entry(dtype=32), f": {NORM}", "a string was expected"),
    Case("dtype_twice", header(lambda t: t.replace('"dtype"', '"dtype": "F32", "dtype"', 1)), f": {FIRST}", "appears twice"),
    Case("shape_negative", reshaped(NORM, [-32]), f": {NORM}", "-32"),
    Case("shape_of_floats", reshaped(NORM, [32.0]), f": {NORM}", "whole numbers"),
    Case("shape_of_text", reshaped(NORM, ["32"]), f": {NORM}", "shape holds a string"),
    Case("shape_is_a_number", reshaped(NORM, 32), f": {NORM}", "an array of sizes was expected"),
    Case("shape_nested", reshaped(NORM, [[32]]), f": {NORM}", "shape holds an array"),
    Case("shape_beyond_64_bits", reshaped(NORM, [2**64]), f": {NORM}", "whole numbers"),
    Case("offsets_of_one_number", entry(data_offsets=[0]), f": {NORM}", "[begin, end]"),
    Case("offsets_of_three_numbers", entry(data_offsets=[0, 64, 128]), f": {NORM}", "[begin, end]"),
    Case("offsets_negative", entry(data_offsets=[-128, 0]), f": {NORM}", "-128"),
    Case("offsets_as_floats", entry(data_offsets=[0.0, 128.0]), f": {NORM}", "whole numbers"),
    Case("offsets_as_an_object", entry(data_offsets={"begin": 0, "end": 128}), f": {NORM}", "an array of sizes"),
]

LAYOUT = [
    Case("end_before_begin", lambda w: entry(data_offsets=w.header[NORM]["data_offsets"][::-1])(w), f": {NORM}", "must begin at"),
    Case("overlap_by_a_byte", moved(NORM, -1, -1), f": {NORM}", "no overlap"),
    Case("hole_before_the_first", moved(FIRST, 4, 4), f": {FIRST}", "must begin at 0"),
    Case("hole_in_the_middle", moved(BIAS, 4, 4), f": {BIAS}", "no gap"),
    Case("tied_head_on_the_same_bytes", shared_range, "", "no overlap"),
    Case("offsets_past_the_file", lambda w: entry(data_offsets=[0, 10**15])(w), f": {NORM}", "data_offsets"),
    Case("offsets_near_2_to_the_64", moved(NORM, 2**64 - 10**6, 2**64 - 10**6), "", "must begin at"),
    Case("range_longer_than_the_shape", reshaped(NORM, [31]), f": {NORM}", "takes 124"),
    Case("shape_longer_than_the_range", reshaped(NORM, [33]), f": {NORM}", "takes 132"),
    Case("dtype_half_as_wide", entry(dtype="BF16"), f": {NORM}", "takes 64"),
    Case("elements_overflow_64_bits", reshaped(NORM, [2**32, 2**32, 2]), f": {NORM}", "does not fit 64 bits"),
    Case("bits_overflow_64_bits", reshaped(NORM, [2**61]), f": {NORM}", "number of bits"),
    Case("product_wraps_to_the_right_size", reshaped(NORM, [2**62, 4, 32]), f": {NORM}", "does not fit 64 bits"),
    Case("half_a_byte", lambda w: (w.add("x", "F4", [3], b"ab"), w.write()), ": x", "12 bits"),
    Case("scalar_without_bytes", top(x={"dtype": "F32", "shape": [], "data_offsets": [0, 0]}), ": x", "takes 4"),
]

# Good files for the reference too, but not those of this model.
MODEL = [
    Case("no_tensors", lambda w: (setattr(w, "data", b""), w.write(w.content("{}"))), f": {FIRST}", "missing"),
    Case("tensor_missing", without(UP), f": {UP}", ("missing", "[48, 32]")),
    Case("tensor_transposed", reshaped(UP, [32, 48]), f": {UP}", ("[32, 48]", "[48, 32]")),
    Case("vector_as_a_row", reshaped(NORM, [1, 32]), f": {NORM}", ("[1, 32]", "[32]")),
    Case("norm_of_integers", retyped(NORM, "I64", 8), f": {NORM}", "I64"),
    Case("weight_in_fp64", retyped(UP, "F64", 8), f": {UP}", "F64"),
    Case("weight_in_fp8", retyped(UP, "F8_E4M3", 1), f": {UP}", "unquantised"),
    Case("names_of_a_parallel_wrapper", renamed(lambda name: "module." + name), f": {FIRST}", "missing"),
    Case("names_of_gpt2", renamed(lambda name: name.replace("model.layers", "transformer.h")),
         ": model.layers.0.input_layernorm.weight", "missing"),
    Case("escape_codes_in_a_name", lambda w: (w.add("\x1b[2J\x1b[31mgone\r\n", "F4", [3], b"ab"), w.write()), "gone\\x0d?", "12 bits"),
    Case("name_of_a_megabyte", lambda w: (w.add("n" * 10**6, "F4", [3], b"ab"), w.write()), "", "12 bits"),
]
MODEL_FILE_IS_BAD = {"escape_codes_in_a_name", "name_of_a_megabyte"}

STRICTER = [Case("tensor_listed_twice", twice(NORM), f": {NORM}", "appears twice")]

# No file at all: the reference is not asked.
PLACES = [
    Case("folder_in_its_place", lambda w: w.path.mkdir(), "/model.safetensors", "is a folder"),
    Case("pipe_in_its_place", lambda w: fifo(w.path), "/model.safetensors", "regular file"),
    Case("link_to_a_device", link_to("/dev/zero"), "/model.safetensors", "regular file"),
    Case("link_to_nothing", link_to("../../blobs/abc"), "/model.safetensors", "the download is incomplete"),
    Case("link_to_itself", link_to("model.safetensors"), "/model.safetensors", "the download is incomplete"),
]

FILES = LENGTH + OTHER_FILES + TEXT + ENTRIES + LAYOUT + MODEL + STRICTER
CASES = FILES + PLACES

GOOD = {
    "spaces_after_the_header": header(lambda t: t + "   "),
    "line_break_before_the_header": header(lambda t: "\n" + t),
    "unknown_key_in_an_entry": entry(stride=[1], note={"a": [None]}),
    "odd_header_length": header(lambda t: t + " " * (7 - len(t) % 8)),
    "no_metadata": lambda w: (w.header.pop("__metadata__"), w.write()),
    "one_weight_in_bf16": retyped(UP, "BF16", 2),
    "empty_tensor_more": lambda w: (w.add("empty", "F32", [0, 5], b""), w.write()),
    "tensor_of_another_part": lambda w: (w.add("visual.x", "F6_E2M3", [4], b"abc"), w.write()),
}


@pytest.fixture
def weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return Weights(tmp_path / "model.safetensors")


def check(weights):
    return run_quickly("check", "--json", f"model={weights.path.parent}", "datasets=[/dev/null]")


def reference_accepts(path):
    try:
        with safe_open(path, "np"):
            return True
    except Exception:  # noqa: BLE001 - the package raises several kinds
        return False


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_is_refused(weights, case):
    case.make(weights)
    run = check(weights)
    assert_refused(run, case)
    assert str(weights.path) in run.stderr or case in MODEL, run


@pytest.mark.parametrize("case", FILES, ids=ids(FILES))
def test_verdict_is_that_of_the_reference(weights, case):
    case.make(weights)
    expected = (case in MODEL and case.name not in MODEL_FILE_IS_BAD) or case in STRICTER
    assert reference_accepts(weights.path) == expected


@pytest.mark.parametrize("name", GOOD)
def test_odd_but_good(weights, name):
    GOOD[name](weights)
    assert reference_accepts(weights.path)
    run = check(weights)
    assert run.code == 0, run


def test_there_are_enough_cases():
    assert_enough(CASES, 60)
