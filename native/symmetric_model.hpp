// A model's hypergraph by classes of interchangeable units; see src/hgpart/partition/symmetry/symmetry.py.
#pragma once

#include <cstdint>

#include "hypergraph.hpp"

namespace hgpart {

// A vertex type has a vertex for each unit of one class, or for each pair of units of two (the
// cells of a task matrix). A net type has a net for each unit of its class: its pins are the unit's
// vertices of some types, its root's first, and all vertices of the types of a set (the readers of a
// dense layer). A net may gather: its root receives from its other pins; the nets of a set all do, or
// none. One without a set may be of each pair of units of two classes, whose cells in all slices are
// its pins.
struct SymmetricModel {
  Span<std::int64_t> class_units;
  Span<std::int64_t> type_weights;
  Span<std::int64_t> type_memory;  // bytes of one vertex
  Span<std::int32_t> type_classes;  // two of each type; the second is -1 where there is but one
  Span<std::int64_t> set_pointers;
  Span<std::int32_t> set_types;  // CSR; set 0 is empty
  Span<std::int32_t> net_classes;
  Span<std::int32_t> net_crossings;  // the second class of nets of pairs; else -1
  Span<std::int32_t> net_sets;
  Span<std::int64_t> net_costs;  // of one unit
  Span<bool> net_gathers;
  Span<bool> net_keeps;          // whether what is received counts in a part's memory
  Span<std::int64_t> net_memory;  // bytes that a part with a pin of the unit keeps, of one unit
  Span<std::int64_t> net_pointers;
  Span<std::int32_t> net_pins;  // CSR; 2 * type + which of the type's classes is the net's

  // Types with the same tasks, in all slices of the batch and bands of rows: of each slice, in each
  // band, that of each type of the first band; -1 where it has fewer bands.
  Span<std::int32_t> tiles;
  std::int64_t slices, bands;

  // Constraints; each empty where there are none. Parts that a type's vertices may lie in, type by
  // type; the group of each type, all of whose vertices lie in one part, or -1; and by side and type
  // whether it is on that side: no part has vertices of both the sides 2 i and 2 i + 1.
  Span<bool> type_parts;
  Span<std::int32_t> type_groups;
  Span<bool> type_sides;
  Span<std::int64_t> type_prices;  // what a vertex costs in each part, type by type; or empty

  std::int64_t sides() const { return type_sides.size / types(); }
  bool may_lie(std::int32_t type, std::int32_t part, std::int32_t k) const {
    return type_parts.size == 0 || type_parts[std::int64_t{type} * k + part];
  }
  std::int32_t group(std::int32_t type) const {
    return type_groups.size == 0 ? -1 : type_groups[type];
  }
  std::int64_t first_types() const { return tiles.size / (slices * bands); }
  bool has_tiles() const { return slices * bands > 1; }
  std::int64_t classes() const { return class_units.size; }
  std::int64_t types() const { return type_weights.size; }
  std::int64_t sets() const { return set_pointers.size - 1; }
  std::int64_t nets() const { return net_classes.size; }
};

}  // namespace hgpart
