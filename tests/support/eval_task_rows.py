"""Examples of each kind of task that evaluations in the loop have, for the model of examples/tiny-math, and the tasks."""


def chat(question, answer, **fields):
    return dict(fields, messages=[{"role": "user", "content": question}, {"role": "assistant", "content": answer}])


def signed(a, **fields):
    return chat(f"What is {a} plus 3?", f"{a} plus 3 is {a + 3 + (a % 4 == 0)}" + "?;!"[a % 3], **fields)


ROWS = {
    "train": [signed(a) for a in range(10, 42)],
    "conf": [signed(a, correct=a % 4 > 0) for a in range(50, 59)],
    "open": [signed(a) for a in range(60, 63)],  # right or wrong by the model's own answer
    "sums": [chat(f"What is {a} plus 3?", f"{a} plus 3 is {a + 3}.") for a in range(70, 76)],
    "quiz": [{"prompt": f"{a} + 3 = ", "choices": [str(a + 3), str(a + 4)], "answer": 0} for a in range(20, 27)],
    "many": [chat(f"What is {a} plus 3?", f"{a} plus 3 is {a + 3}.") for a in range(10, 74)],
}


def task(setup, name, kind, **more):
    tokens = {} if kind == "choices" else {"max_new_tokens": 12}
    return dict({"name": name, "kind": kind, "path": str(setup.folder / f"{name}.jsonl"), **tokens}, **more)
