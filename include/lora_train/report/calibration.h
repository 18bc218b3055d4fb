// How well stated confidences agree with what was right. The numbers are those of numpy and scikit-learn.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace lora_train::report {

inline constexpr std::size_t kCalibrationBins = 15;

/// A part of the answers, as a reliability diagram shows it: sums, not means.
struct CalibrationBin {
  long long count = 0;
  double confidence = 0;
  long long num_right = 0;
  bool operator==(const CalibrationBin&) const = default;
};

/// An answer with the probability of being right that it states, 0 to 1.
struct Judged {
  double confidence = 0;
  bool is_right = false;
};

/// 15 bins of equal width: bin i has confidences from i / 15 to below (i + 1) / 15, the last one those of 1 too.
std::vector<CalibrationBin> equal_width_bins(std::span<const Judged> answers);

/// 15 bins of equal count: the answers in the order of their confidence, cut as numpy.array_split cuts them. Equally confident
/// answers keep their order.
std::vector<CalibrationBin> equal_mass_bins(std::span<const Judged> answers);

/// Expected calibration error: the mean over answers of |mean confidence - share right| of their bin (arxiv.org/abs/1706.04599).
double calibration_error(std::span<const CalibrationBin> bins);

/// Brier score: the mean of (confidence - is right)^2.
double brier_score(std::span<const Judged> answers);

/// The area under the ROC curve: how likely a right answer is more confident than a wrong one; a tie counts as half. Empty where all
/// answers are right, or all wrong.
std::optional<double> auroc(std::span<const Judged> answers);

double mean_confidence(std::span<const Judged> answers);
double share_right(std::span<const Judged> answers);

}  // namespace lora_train::report
