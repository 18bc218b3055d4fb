#!/usr/bin/env python3
"""No function over 80 lines and no file over 600, in C++ and Python. Prints file:line for each and exits 1.

C++ functions are found by counting braces: comments and literals are blanked, then a brace block that opens after a
parameter list, outside any other function, is a function. Python functions come from `ast`; a class is no function.
--self-test plants long functions and files and expects them.
"""

import argparse
import ast
import pathlib
import re
import sys
import tempfile

MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 600
FOLDERS = ["src", "include", "tests", "scripts", "bench", "examples"]
CPP_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
# Raw strings first: they may hold quotes and comment marks. A ' between digits is a separator, not a character.
LITERAL = re.compile(
    r'R"(?P<mark>[^()\s\\]{0,16})\((?:.|\n)*?\)(?P=mark)"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'")
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
BRACED_VALUE = re.compile(r"(?<=[\w>])\{[^{};]*\}|(?<== )\{[^{};]*\}")  # b_{a}, as clang-format has it, and a = {}
TYPE_OR_NAMESPACE = re.compile(r"(^|[\s>])(namespace|class|struct|union|enum|extern)\b")


def blank(match):
    """The same number of lines, and nothing on them."""
    return "\n" * match[0].count("\n")


def is_function_header(header):
    """Whether the text between the last ; { } and a { declares a function: a closed parameter list, no initialiser."""
    depth, outside = 0, ""
    header = re.sub(r"\btemplate\s*<[^<>]*>", "", header)
    for character in header:
        depth -= character == ")"
        if depth == 0:
            outside += character
        depth += character == "("
    if depth != 0 or ")" not in header:
        return False
    if re.search(r"\boperator\b", outside):
        return True
    # `struct Result run(` is a function, `struct alignas(8) Result` is not: a function's name stands before its list.
    is_type = TYPE_OR_NAMESPACE.search(outside) and not outside.rstrip().endswith(")")
    return not re.search(r"=\s*$|=[^=]", outside) and not is_type


def cpp_functions(text):
    """[(first line, number of lines)] of the functions in a C++ file."""
    text = BRACED_VALUE.sub(lambda match: "()" + blank(match), DIRECTIVE.sub(blank, LITERAL.sub(blank, text)))
    functions, stack = [], []  # the stack holds the first line of a function, or None for any other block
    header, line, header_line = "", 1, None
    for character in text:
        if character == "\n":
            line += 1
        if character in ";{}":
            if character == "{":
                is_function = not any(stack) and is_function_header(header)
                stack.append(header_line or line if is_function else None)
            elif character == "}" and stack:
                first = stack.pop()
                if first:
                    functions.append((first, line - first + 1))
            header, header_line = "", None
        else:
            if header_line is None and not character.isspace():
                header_line = line
            header += character
    return functions


def python_functions(text):
    return [(node.lineno, node.end_lineno - node.lineno + 1) for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def check_file(path, shown):
    """(violations, number of functions) of one file."""
    text = path.read_text(encoding="utf-8")
    violations = []
    num_lines = text.count("\n")
    if num_lines > MAX_FILE_LINES:
        violations.append(f"{shown}:{MAX_FILE_LINES + 1}: the file has {num_lines} lines, at most {MAX_FILE_LINES}")
    functions = python_functions(text) if path.suffix == ".py" else cpp_functions(text)
    violations += [f"{shown}:{first}: the function has {length} lines, at most {MAX_FUNCTION_LINES}"
                   for first, length in functions if length > MAX_FUNCTION_LINES]
    return violations, len(functions)


def check_tree(root):
    """(violations, number of files, number of functions)."""
    violations, num_files, num_functions = [], 0, 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in CPP_SUFFIXES | {".py"} and path.is_file():
                found, functions = check_file(path, path.relative_to(root))
                violations, num_files, num_functions = violations + found, num_files + 1, num_functions + functions
    return violations, num_files, num_functions


def self_test():
    """Functions of 80 lines pass and of 81 do not, wherever they stand; tables and types of any length pass."""
    def cpp(header, num_lines):  # a block with this header, of num_lines lines
        return header + " {\n" + "  x();\n" * (num_lines - 2) + "}"
    fine = {
        "functions": "\n".join([
            cpp("int f(int a)", 80), "int after(char c = '{') { return c == '}' ? 1'000 : 2; }",
            "namespace a {\n" + cpp("Foo::Foo(int a) : a_(a), b_{a}", 80) + "\n}"]),
        "tables": "\n".join([
            cpp("static const int kTable[] =", 100) + ";", cpp("struct alignas(8) S", 100) + ";",
            'const char* kText = R"(\n' + "{ f() {\n" * 90 + ')";', "// {" * 100, cpp("int f()", 80)])}
    long_ones = {
        "free": cpp("int f(int a)", 81), "template": cpp("template <typename T = int>\nT f(T a = {})", 80),
        "method": "class C {\n" + cpp("  int f() const noexcept override", 81) + "\n};",
        "test": "namespace {\n" + cpp("TEST(Suite, Name)", 81) + "\n}",
        "operator": cpp("bool C::operator==(const C& c) const", 81), "init": cpp("C::C(int a)\n    : a_(a), b_(2)", 80), "lambda": "void f() {\n" + cpp("auto g = [](int x)", 80) + ";\n}",
        "braced": cpp("C::C(int a) : a_{a}", 81)}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "src").mkdir()
        for name, text in fine.items():
            (root / "src" / f"{name}.cpp").write_text(text + "\n", encoding="utf-8")
        violations, num_files, num_functions = check_tree(root)
        assert not violations and num_files == 2 and num_functions == 4, (violations, num_functions)
        for name, text in long_ones.items():
            (root / "src" / f"{name}.cpp").write_text(text + "\n", encoding="utf-8")
        (root / "src" / "script.py").write_text("def f():\n" + "    pass\n" * 80, encoding="utf-8")
        (root / "src" / "file.h").write_text("int x;\n" * (MAX_FILE_LINES + 1), encoding="utf-8")
        violations, _, _ = check_tree(root)
        got = sorted(violation.split(":")[0] for violation in violations)
        assert got == sorted([f"src/{name}.cpp" for name in long_ones] + ["src/script.py", "src/file.h"]), violations
    print(f"check_function_length: self-test: {len(long_ones) + 2} planted violations found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return 0
    violations, num_files, num_functions = check_tree(arguments.root)
    summary = f"check_function_length: {num_files} files, {num_functions} functions, {len(violations)} violations"
    print(*violations, summary, sep="\n")
    return 1 if violations or num_functions == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
