"""Mutations of suite `ranks` of scripts/mutation_check.py, as in durability_mutations.py: what makes runs of several ranks equal to one."""

STEP, EVALUATE, RANKS = "src/run/train_step.cpp", "src/evaluate/loss_evaluation.cpp", "src/run/rank_agreement.cpp"
EQUAL = "ranks/test_ranks.py number_of_ranks_changes"

MUTATIONS = [
    ("loss not reduced", EQUAL, [
        (STEP, "scalars[optim::kLossSum], context.scalars.figures()});",
         "MUTANT ? at::zeros_like(scalars[optim::kLossSum]) : scalars[optim::kLossSum],\n"
         "                   context.scalars.figures()});")]),
    ("gradients not reduced", EQUAL, [
        (STEP, "std::array{context.parameters.grads, ", "std::array{MUTANT ? context.parameters.grads.clone() : context.parameters.grads, ")]),
    ("division by the world size", EQUAL, [
        (STEP, "  if (update == Update::kSkip) {\n", "  if (MUTANT) context.parameters.grads.div_(context.ranks->world_size());\n"
         "  if (update == Update::kSkip) {\n")]),
    ("reduction after clipping", EQUAL, [
        (STEP, "    context.ranks->all_reduce(\n", "    if (MUTANT) {\n"
         "      optim::measure_gradients(context.parameters.grads, context.max_grad_norm, scalars);\n"
         "      context.parameters.grads.mul_(scalars[optim::kClipFactor]);\n    }\n    context.ranks->all_reduce(\n")]),
    ("evaluation on the rows of rank 0", EQUAL, [
        (EVALUATE, "  if (ranks.world_size() == 1) return;\n", "  if (MUTANT || ranks.world_size() == 1) return;\n")]),
    ("dropout by rank", EQUAL, [
        (STEP, "philox_key(context.seed, ", "philox_key(MUTANT ? context.seed + static_cast<std::uint64_t>(context.ranks->rank()) : context.seed, ")]),
    ("a step has other rows on other ranks", "run_test Decide.*Rows*", [
        ("src/plan/run_spec.cpp", "schedule.gradient_accumulation_steps && facts.resume", "!MUTANT && schedule.gradient_accumulation_steps && facts.resume")]),
    ("parameters not compared", "run_test Ranks.*", [
        (RANKS, "    if (all[rank] != all[0]) different", "    if (!MUTANT && all[rank] != all[0]) different")]),
    ("runs not compared", "ranks/test_ranks.py other_data", [
        ("src/plan/setup/run_device.cpp", "      if (other[what] == value) continue;", "      if (MUTANT || other[what] == value) continue;")]),
    ("stops before all have met are kept", "ranks_test Rendezvous.*", [
        ("src/ranks/rendezvous.cpp", "fate.empty() && !reason.empty()) fate", "!MUTANT && fate.empty() && !reason.empty()) fate")]),
    ("a dead rank is not looked for", "ranks_test Rendezvous.*:Control.*", [
        ("src/ranks/rendezvous.cpp", "  return had_ended_ ||", "  if (MUTANT) return false;\n  return had_ended_ ||")]),
]
