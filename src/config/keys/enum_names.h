// Names of the closed sets of values, as profiles spell them. The first name of a value is how it is written.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/profile.h"

namespace lora_train {

template <class E>
using EnumNames = std::vector<std::pair<E, std::string>>;

const EnumNames<Device>& enum_names(Device);
const EnumNames<AdapterKind>& enum_names(AdapterKind);
const EnumNames<BasePrecision>& enum_names(BasePrecision);
const EnumNames<Precision>& enum_names(Precision);
const EnumNames<DatasetType>& enum_names(DatasetType);
const EnumNames<LossOn>& enum_names(LossOn);
const EnumNames<Overlength>& enum_names(Overlength);
const EnumNames<OnBadRow>& enum_names(OnBadRow);
const EnumNames<TokenInit>& enum_names(TokenInit);
const EnumNames<OptimizerKind>& enum_names(OptimizerKind);
const EnumNames<SchedulerKind>& enum_names(SchedulerKind);
const EnumNames<LrScaling>& enum_names(LrScaling);
const EnumNames<GradientCheckpointing>& enum_names(GradientCheckpointing);
const EnumNames<CudaGraphs>& enum_names(CudaGraphs);
const EnumNames<Tuning>& enum_names(Tuning);
const EnumNames<AttnImplementation>& enum_names(AttnImplementation);
const EnumNames<KernelSetting>& enum_names(KernelSetting);
const EnumNames<Reporter>& enum_names(Reporter);

template <class E>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const auto& entry : enum_names(E{})) names.push_back(entry.second);
  return names;
}

}  // namespace lora_train
