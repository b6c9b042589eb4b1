// The order in which parts begin their actions if each takes the best of what it could do; see
// src/hgpart/schedules/rules/list_scheduling.py.
#pragma once

#include <cstdint>
#include <vector>

#include "hypergraph.hpp"

namespace hgpart {

// The actions of a micro-batch, which are the same in all of them.
struct ActionGraph {
  Span<std::int32_t> parts;        // of each action
  Span<double> seconds;
  Span<std::int32_t> classes;      // of those that are ready, the lowest class runs first; then the
  Span<std::int32_t> chunks;       // first micro-batch; then the lowest chunk
  Span<bool> begins;               // whether a part begins a micro-batch with it
  Span<std::int64_t> pointers;     // the actions that need each action (CSR)
  Span<std::int32_t> followers;
  Span<double> travels;            // seconds of a message to each of them
  Span<std::int64_t> alive;        // micro-batches that each part may have begun and not ended
};

struct ListedActions {
  std::vector<std::int64_t> order;
  // Of each action by number: when it begins if its part goes through this order, however many
  // micro-batches it has begun.
  std::vector<double> begins;
};

// Action a of micro-batch m is number m * actions + a. All of a micro-batch's actions need those of
// the one before. Throws InvalidHypergraph if a number is out of range.
ListedActions list_schedule(const ActionGraph& graph, std::int64_t micro_batches);

}  // namespace hgpart
