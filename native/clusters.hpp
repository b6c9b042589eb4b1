// Vertex types that exchange much, joined to clusters, and these to larger ones.
#pragma once

#include <cstdint>
#include <vector>

#include "symmetric_model.hpp"

namespace hgpart {

// Levels of clusters, each about twice as large as those of the level before; none where nothing
// can be joined.
struct Clusters {
  std::vector<std::vector<std::int32_t>> of_type;               // of each level: a type's cluster
  std::vector<std::vector<std::vector<std::int32_t>>> members;  // of each level: a cluster's types

  std::size_t levels() const { return members.size(); }
};

// No cluster has more work than `most`; another seed gives others.
Clusters clusters_of(const SymmetricModel& model, std::int64_t most, std::uint64_t seed);

}  // namespace hgpart
