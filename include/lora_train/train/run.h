// The functions behind EngineApi (requests.h). They see torch; the declarations do not.
#pragma once

#include <vector>

#include "lora_train/train/requests.h"

namespace lora_train::train {

/// Trains, writes everything below output_dir and returns what summary.json says. Whatever goes wrong is thrown; once
/// the folder exists summary.json is written in that case too, and run.log stays open for the report of the error. A
/// stop on request is no error: exit_code 75.
TrainResult run_training(const TrainRequest& request);

/// Completions of the adapter and, with compare, of the base, by the same weights. Throws Error.
GenerateTotals run_generation(const GenerateRequest& request, GenerateSink& sink);

/// Evaluates the base or the adapter on eval_datasets, one result per data set. Throws Error.
std::vector<EvalResult> run_evaluation(const EvalRequest& request);

/// Counts a step of a shape, and measures it unless asked not to. Throws Error.
BenchResult run_bench(const BenchRequest& request);

/// Runs every kernel and its reference on the device, at a few shapes each; a kernel that throws is one that has not passed.
std::vector<KernelCheck> check_kernels(const DoctorRequest& request);

}  // namespace lora_train::train
