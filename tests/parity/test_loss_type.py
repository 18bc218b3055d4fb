"""`loss_type: dft` against transformers + PEFT with the loss of TRL's SFTConfig(loss_type="dft"): the cross entropy of each token
times its probability, as a constant. The oracle's token_losses are replaced; all else of it stays."""

import pytest

import engine
import oracle
from first_step import GRADIENT_TOLERANCE, LOSS_TOLERANCE, check
from replayed_steps import GRAPHS, curve
from weighted_dialogues import Setup

DFT = dict(loss_type="dft")
KERNELS = pytest.mark.parametrize("kernels", [(), engine.CUDA_ON_CPU], ids=["cpu", "cuda-on-cpu"])
NUM_STEPS = 5


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    return Setup(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def dft(monkeypatch):
    cross_entropy = oracle.token_losses

    def token_losses(*arguments, **options):
        losses = cross_entropy(*arguments, **options)  # 0 where a token is not supervised
        return losses * (-losses).exp().detach()
    monkeypatch.setattr(oracle, "token_losses", token_losses)


@KERNELS
@pytest.mark.parametrize("number", [*range(4), 100, 101])  # every family
def test_step_1(cases, dft, tmp_path, number, kernels):
    case = cases(number)
    loss, reference = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    for rows in (2, len(case.rows)):
        profile = engine.profile_for(case, tmp_path / "run", micro_batch_size=rows, **DFT)
        check(case, *engine.probe(profile, tmp_path, kernels=kernels), loss, reference)


@KERNELS
def test_weights_of_tokens(setup, dft, tmp_path, kernels):
    check(setup, *engine.probe(setup.profile(tmp_path, **DFT), tmp_path, kernels=kernels), *setup.reference(setup.rows))


@KERNELS
@pytest.mark.parametrize("number", [2, 8])
def test_five_steps(cases, dft, tmp_path, number, kernels):
    case = cases(number)
    model = oracle.load_peft(case.model_dir, case.adapter_dir)
    history = oracle.train(model, oracle.batches_in_order(case.rows, len(case.rows), NUM_STEPS), learning_rate=1e-3)
    got = curve(case, tmp_path, NUM_STEPS, kernels, **DFT, learning_rate=1e-3)
    assert got["losses"] == pytest.approx([step["loss"] for step in history], rel=LOSS_TOLERANCE)
    assert got["grad_norms"] == pytest.approx([step["grad_norm"] for step in history], rel=GRADIENT_TOLERANCE)
    assert len(set(got["losses"])) == NUM_STEPS
    if kernels:
        assert got["allocations"] == 0, "every buffer is planned"


def test_it_runs_without_graphs(cases, tmp_path):
    captured = curve(cases(1), tmp_path, 3, GRAPHS["on"], **DFT)
    assert captured["replays"] == 0 and captured["classes"] == []
    assert captured["losses"] == curve(cases(1), tmp_path, 3, engine.CUDA_ON_CPU, **DFT)["losses"]


def test_evaluation_reports_cross_entropy(cases, tmp_path):
    case = cases(0)
    engine.train(engine.profile_for(case, tmp_path / "run", eval_datasets=[{"path": str(case.data_file), "type": "pretokenized"}],
                                    learning_rate=1e-9, **DFT), tmp_path)
    evaluation = engine.events(tmp_path / "run", "eval")[-1]
    assert evaluation["loss"] == pytest.approx(oracle.loss(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows), rel=1e-5)
