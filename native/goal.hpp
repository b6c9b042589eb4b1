// What a division is searched for; see src/hgpart/partition/native/goal.py.
#pragma once

#include <cstdint>

#include "hypergraph.hpp"

namespace hgpart {

enum class Objective : std::int32_t {
  kVolume,   // bytes that travel
  kLargest,  // bytes that one part sends and receives, of the part with most
  kLinks,    // bytes, each times the cost of the link that it takes
  kTime,     // of a step in micro-batches; see step_time.hpp
};

struct Goal {
  Span<std::int64_t> capacities;  // work of each part
  Span<std::int64_t> memory;      // bytes of each part; empty where they are not limited
  Objective objective;
  Span<std::int64_t> links;  // cost of a byte from part s to part r at s * k + r, 0 from s to s
  // Of kTime: the layer of each type, how long each part takes for a unit of work, and nanoseconds
  // of a unit of that and of one of the links' costs.
  Span<std::int32_t> type_layers;
  Span<std::int64_t> slowness;
  double work_time, link_time;
  std::int32_t micro_batches;
};

// Whether the volume and the work don't tell what is asked for.
inline bool has_traffic(const Goal& goal) {
  return goal.objective != Objective::kVolume || goal.memory.size > 0;
}

}  // namespace hgpart
