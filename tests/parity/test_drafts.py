"""Generation with guesses (prompt lookup) beside generation without."""

import torch
from safetensors.torch import load_file

from generation import probe, prompts_of, request_for


def test_guesses_change_no_token_and_no_bit(cases, tmp_path):
    saved = 0
    for number, dtype, temperature in ((0, "fp32", 0), (1, "bf16", 0), (2, "fp32", 0.5), (3, "fp32", 0)):
        case = cases(number)
        word = prompts_of(case)[0][:3]
        prompts = [word * 5, [*word, 1, *word, 2, *word], prompts_of(case)[0]]
        for count in (1, 2, 3):
            results = []
            for drafts in (False, True):
                request = request_for(case, prompts[:count], new_tokens=40, dtype=dtype, limits={"drafts": drafts},
                                      sampling={"temperature": temperature, "seed": 3}, log_probabilities=True)
                logits = tmp_path / f"logits-{drafts}"
                result = probe({**request, "logits": str(logits)}, tmp_path)
                results.append((result, load_file(logits)))
            (plain, rows), (guessed, rows_too) = results
            assert guessed["completions"] == plain["completions"] and guessed["streamed"] == plain["streamed"], number
            assert rows.keys() == rows_too.keys() and all(torch.equal(rows[key], rows_too[key]) for key in rows), number
            assert plain["decode_passes"] == 39 and guessed["new_tokens"] == plain["new_tokens"] == 40 * count
            saved += 39 - guessed["decode_passes"]
            # An end in the middle of right guesses.
            stop = plain["completions"][0]["ids"][20]
            ends = [probe(request_for(case, prompts[:count], new_tokens=40, dtype=dtype, limits={"drafts": drafts}, **end,
                                      sampling={"temperature": temperature, "seed": 3}), tmp_path)["completions"]
                    for drafts in (False, True) for end in ({"stop_ids": [stop]}, {"quit_after": 17})]
            assert ends[:2] == ends[2:] and {answer["reason"] for answer in ends[1]} == {"caller"}, number
    assert saved > 60, f"{saved} passes saved"
