"""What `train` promises where an input is broken: exit code, message, and nothing half-written."""

USAGE, DATA, FORMAT, IO, NUMERIC = 2, 3, 4, 5, 7
KINDS = {USAGE: "config", DATA: "data", FORMAT: "format", IO: "io", NUMERIC: "numeric"}


def refused(setup, code, *parts, **changes):
    """Runs `train --json` on the broken setup and checks all that every refusal promises."""
    run = setup.train("--json", **changes)
    assert run.code == code, run
    error = run.json_lines()[-1]["error"]
    assert error["kind"] == KINDS[code], run
    said = f"{error['where']}: {error['message']}"
    for part in parts:
        assert str(part) in said, f"{part!r} is not in: {said}"
        assert str(part) in run.stderr, run
    assert "internal error" not in run.stderr, run
    assert run.stderr.count(error["message"]) == 1, f"one error is printed once: {run}"
    assert_nothing_half_written(setup)
    return said


def assert_nothing_half_written(setup):
    if not setup.output_dir.exists():
        return
    left = {path.name for path in setup.output_dir.iterdir()}
    assert left <= {"run.json", "run.log", "summary.json", "report.html", "metrics.jsonl", "profile.yaml"}, left
    if left:
        assert setup.summary()["error"]["message"] in (setup.output_dir / "run.log").read_text()
    if "summary.json" in left:
        summary = setup.summary()
        assert summary["status"] == "failed" and summary["exit_code"] != 0 and summary["error"]["message"]
