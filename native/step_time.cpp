#include "step_time.hpp"

#include <algorithm>

#include "traffic.hpp"

namespace hgpart {

StepTime::StepTime(const Goal& goal)
    : k_(static_cast<std::int32_t>(goal.capacities.size)), goal_(goal), loads_(k_, 0) {
  std::int32_t layers = 0;
  for (const auto layer : goal.type_layers) layers = std::max(layers, layer + 1);
  of_layers_.assign(static_cast<std::size_t>(layers) * k_, 0);
  largest_.assign(layers, 0);
}

void StepTime::add_work(std::int32_t type, std::int32_t part, std::int64_t amount) {
  if (amount == 0) return;
  amount *= goal_.slowness[part];
  const auto layer = goal_.type_layers[type];
  const auto first = of_layers_.begin() + static_cast<std::ptrdiff_t>(layer) * k_;
  auto& own = *(first + part);
  auto& largest = largest_[layer];
  const bool was_largest = own == largest;
  loads_[part] += amount;
  own += amount;
  if (own <= largest && !was_largest) return;
  const auto now = own > largest ? own : *std::max_element(first, first + k_);
  path_ += now - largest;
  largest = now;
}

template <typename Largest>
double StepTime::combined(const std::vector<std::int64_t>& exchanged, Largest largest) const {
  const auto links = goal_.link_time * largest([&](std::int32_t part) {
                       return static_cast<double>(exchanged[part]);
                     });
  const auto once = goal_.work_time * static_cast<double>(path_) + links;
  if (goal_.micro_batches == 1) return once;
  const auto busiest = largest([&](std::int32_t part) {
    return goal_.work_time * static_cast<double>(loads_[part]) +
           goal_.link_time * static_cast<double>(exchanged[part]);
  });
  const auto count = static_cast<double>(goal_.micro_batches);
  return ((count - 1) * busiest + once) / count;
}

double StepTime::value(const std::vector<std::int64_t>& exchanged) const {
  return combined(exchanged, [this](auto of_part) {
    double most = 0;
    for (std::int32_t part = 0; part < k_; ++part) most = std::max(most, of_part(part));
    return most;
  });
}

double StepTime::smooth_value(const std::vector<std::int64_t>& exchanged) const {
  return combined(exchanged, [this](auto of_part) { return smooth_largest(k_, of_part); });
}

}  // namespace hgpart
