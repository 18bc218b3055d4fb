#include "lora_train/report/calibration.h"

#include <algorithm>
#include <cmath>

namespace lora_train::report {
namespace {

double size_of(std::span<const Judged> answers) { return static_cast<double>(answers.size()); }

void add(const Judged& answer, CalibrationBin& bin) {
  ++bin.count;
  bin.confidence += answer.confidence;
  bin.num_right += answer.is_right ? 1 : 0;
}

std::vector<Judged> by_confidence(std::span<const Judged> answers) {
  std::vector<Judged> sorted(answers.begin(), answers.end());
  std::ranges::stable_sort(sorted, {}, &Judged::confidence);
  return sorted;
}

}  // namespace

std::vector<CalibrationBin> equal_width_bins(std::span<const Judged> answers) {
  std::vector<CalibrationBin> bins(kCalibrationBins);
  for (const Judged& answer : answers) {
    const auto bin = static_cast<std::size_t>(answer.confidence * static_cast<double>(kCalibrationBins));
    add(answer, bins[std::min(bin, kCalibrationBins - 1)]);
  }
  return bins;
}

std::vector<CalibrationBin> equal_mass_bins(std::span<const Judged> answers) {
  const std::vector<Judged> sorted = by_confidence(answers);
  std::vector<CalibrationBin> bins(kCalibrationBins);
  const std::size_t least = sorted.size() / kCalibrationBins, num_larger = sorted.size() % kCalibrationBins;
  auto next = sorted.begin();
  for (std::size_t i = 0; i < kCalibrationBins; ++i) {
    for (std::size_t count = least + (i < num_larger ? 1 : 0); count > 0; --count) add(*next++, bins[i]);
  }
  return bins;
}

double calibration_error(std::span<const CalibrationBin> bins) {
  double error = 0;
  long long count = 0;
  for (const CalibrationBin& bin : bins) {
    error += std::abs(bin.confidence - static_cast<double>(bin.num_right));
    count += bin.count;
  }
  return error / static_cast<double>(count);
}

double brier_score(std::span<const Judged> answers) {
  double sum = 0;
  for (const Judged& answer : answers) sum += std::pow(answer.confidence - (answer.is_right ? 1 : 0), 2);
  return sum / size_of(answers);
}

std::optional<double> auroc(std::span<const Judged> answers) {
  const std::vector<Judged> sorted = by_confidence(answers);
  double pairs = 0;  // of a right and a wrong answer, of which the right one is more confident
  double num_wrong = 0, num_right = 0;
  for (auto begin = sorted.begin(); begin != sorted.end();) {
    double right = 0, wrong = 0;
    auto end = begin;
    for (; end != sorted.end() && end->confidence == begin->confidence; ++end) (end->is_right ? right : wrong) += 1;
    pairs += right * (num_wrong + wrong / 2);
    num_right += right;
    num_wrong += wrong;
    begin = end;
  }
  if (num_right == 0 || num_wrong == 0) return std::nullopt;
  return pairs / (num_right * num_wrong);
}

double mean_confidence(std::span<const Judged> answers) {
  double sum = 0;
  for (const Judged& answer : answers) sum += answer.confidence;
  return sum / size_of(answers);
}

double share_right(std::span<const Judged> answers) {
  return static_cast<double>(std::ranges::count_if(answers, &Judged::is_right)) / size_of(answers);
}

}  // namespace lora_train::report
