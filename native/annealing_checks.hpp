// Checks at the door of the annealing: what passes them is never read out of bounds, no 64-bit sum
// wraps, and each table has room.
#pragma once

#include <cstdint>

#include "annealing.hpp"

namespace hgpart {

void check_model(const SymmetricModel& model);
void check_goal(const Goal& goal, const SymmetricModel& model);

// A start and its options, which are the `number`th.
void check_chain(const SymmetricModel& model, const Goal& goal, const Rows& start,
                 const AnnealingOptions& options, std::int64_t number);

}  // namespace hgpart
