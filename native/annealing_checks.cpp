#include "annealing_checks.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "validation.hpp"

namespace hgpart {

namespace {

// They bound what a mistaken number allocates: 8 GiB of rows and vertices, 4 GiB of counts.
constexpr std::int64_t kMaxVertices = std::int64_t{1} << 28;
constexpr std::int64_t kMaxCounts = std::int64_t{1} << 30;

constexpr const char* kMemory = "total memory";

template <typename T>
Span<T> span_of(const std::vector<T>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size())};
}

// What a type has for each class of `per_class`: one number, or the product of two.
template <typename PerClass>
std::int64_t of_type(const SymmetricModel& model, std::int64_t type, PerClass per_class,
                     const char* what) {
  const auto second = model.type_classes[2 * type + 1];
  return multiply_checked(per_class(model.type_classes[2 * type]),
                          second < 0 ? 1 : per_class(second), what);
}

// The same of a net.
template <typename PerClass>
std::int64_t of_net(const SymmetricModel& model, std::int64_t net, PerClass per_class,
                    const char* what) {
  const auto second = model.net_crossings[net];
  return multiply_checked(per_class(model.net_classes[net]), second < 0 ? 1 : per_class(second),
                          what);
}

std::int64_t total_of_types(const SymmetricModel& model, Span<std::int64_t> each,
                            const char* what) {
  const auto units = [&](std::int32_t c) { return model.class_units[c]; };
  std::int64_t total = 0;
  for (std::int64_t type = 0; type < model.types(); ++type) {
    add_checked(total, multiply_checked(each[type], of_type(model, type, units, what), what), what);
  }
  return total;
}

// Each type is one tile.
void check_tiles(const SymmetricModel& model) {
  const auto types = model.types(), most = types;
  if (model.slices < 1 || model.bands < 1 || model.slices > most || model.bands > most ||
      model.tiles.size == 0 || model.tiles.size % (model.slices * model.bands) != 0) {
    throw InvalidHypergraph("tiles has length " + std::to_string(model.tiles.size) +
                            ", expected some for each of " + std::to_string(model.slices) +
                            " slices and " + std::to_string(model.bands) + " bands");
  }
  std::vector<bool> seen(types);
  for (std::int64_t at = 0; at < model.tiles.size; ++at) {
    const auto type = model.tiles[at];
    if (type == -1) continue;
    if (type < 0 || type >= types || seen[type]) {
      fail("tiles", at, type, "-1 or a type that is no tile before");
    }
    seen[type] = true;
  }
  for (std::int64_t type = 0; type < types; ++type) {
    if (!seen[type]) fail("tiles", type, -1, "each type, somewhere");
  }
}

void check_types(const SymmetricModel& model) {
  if (model.types() == 0) {
    throw InvalidHypergraph("type_weights has length 0, expected 1 or more");
  }
  for (std::int64_t c = 0; c < model.classes(); ++c) {
    if (model.class_units[c] < 1) fail("class_units", c, model.class_units[c], "1 or more");
  }
  check_not_negative("type_weights", model.type_weights);
  check_length("type_memory", model.type_memory.size, model.types(), "one per type");
  check_not_negative("type_memory", model.type_memory);
  check_length("type_classes", model.type_classes.size, 2 * model.types(), "two per type");
  for (std::int64_t at = 0; at < model.type_classes.size; ++at) {
    const auto least = at % 2 == 0 ? 0 : -1;
    if (model.type_classes[at] < least || model.type_classes[at] >= model.classes()) {
      fail("type_classes", at, model.type_classes[at],
           std::to_string(least) + " or more and less than " + std::to_string(model.classes()));
    }
  }
  check_tiles(model);
  if (model.type_groups.size > 0) {
    check_length("type_groups", model.type_groups.size, model.types(), "one per type, or none");
  }
  for (std::int64_t type = 0; type < model.type_groups.size; ++type) {
    if (model.type_groups[type] < -1 || model.type_groups[type] >= model.types()) {
      fail("type_groups", type, model.type_groups[type], "-1 or a number below that of the types");
    }
  }
  if (model.type_sides.size % (2 * model.types()) != 0) {
    throw InvalidHypergraph("type_sides has length " + std::to_string(model.type_sides.size) +
                            ", expected a multiple of two per type");
  }
  total_of_types(model, model.type_weights, "total weight");
  total_of_types(model, model.type_memory, kMemory);
}

void check_sets(const SymmetricModel& model) {
  if (model.set_pointers.size < 2) {
    throw InvalidHypergraph("set_pointers has length " + std::to_string(model.set_pointers.size) +
                            ", expected 2 or more");
  }
  check_pointers("set_pointers", model.set_pointers, nullptr, model.set_types.size,
                 "the number of set_types");
  if (model.set_pointers[1] != 0) {
    fail("set_pointers", 1, model.set_pointers[1], "0: the first set is empty");
  }
  check_below("set_types", model.set_types, model.types());
}

// A net of each pair of units has no set, and cells of these two classes as pins.
void check_crossed(const SymmetricModel& model, std::int64_t net) {
  if (model.net_sets[net] > 0) {
    fail("net_sets", net, model.net_sets[net], "0: nets of pairs of units have no set");
  }
  for (auto at = model.net_pointers[net]; at < model.net_pointers[net + 1]; ++at) {
    const auto pin = model.net_pins[at];
    if (pin % 2 != 0 || model.type_classes[pin] != model.net_classes[net] ||
        model.type_classes[pin + 1] != model.net_crossings[net]) {
      fail("net_pins", at, pin,
           "a pin of classes " + std::to_string(model.net_classes[net]) + " and " +
               std::to_string(model.net_crossings[net]) + ", its net's");
    }
  }
}

void check_nets(const SymmetricModel& model) {
  const auto nets = model.nets();
  check_below("net_classes", model.net_classes, model.classes());
  check_length("net_crossings", model.net_crossings.size, nets, "one per net");
  for (std::int64_t net = 0; net < nets; ++net) {
    const auto crossing = model.net_crossings[net];
    if (crossing < -1 || crossing >= model.classes()) {
      fail("net_crossings", net, crossing,
           "-1 or more and less than " + std::to_string(model.classes()));
    }
  }
  check_length("net_sets", model.net_sets.size, nets, "one per net");
  check_below("net_sets", model.net_sets, model.sets());
  check_length("net_costs", model.net_costs.size, nets, "one per net");
  check_not_negative("net_costs", model.net_costs);
  check_length("net_gathers", model.net_gathers.size, nets, "one per net");
  check_length("net_keeps", model.net_keeps.size, nets, "one per net");
  check_length("net_memory", model.net_memory.size, nets, "one per net");
  check_not_negative("net_memory", model.net_memory);
  check_length("net_pointers", model.net_pointers.size, nets + 1, "one more than net_costs");
  check_pointers("net_pointers", model.net_pointers, kEachNetHasARoot, model.net_pins.size,
                 "the number of net_pins");
  check_below("net_pins", model.net_pins, 2 * model.types());
  std::vector<std::int64_t> first(model.sets(), -1);  // net of each set
  for (std::int64_t net = 0; net < nets; ++net) {
    auto& other = first[model.net_sets[net]];
    if (other < 0) other = net;
    if (model.net_sets[net] > 0 && model.net_gathers[net] != model.net_gathers[other]) {
      fail("net_gathers", net, model.net_gathers[net],
           std::to_string(model.net_gathers[other]) + ", like other nets of its set");
    }
    const auto root = model.net_pointers[net];
    if (model.net_crossings[net] >= 0) {
      check_crossed(model, net);
      continue;
    }
    for (auto at = root; at < model.net_pointers[net + 1]; ++at) {
      // Pins and the classes of types are numbered alike.
      if (model.type_classes[model.net_pins[at]] != model.net_classes[net]) {
        fail("net_pins", at, model.net_pins[at],
             "a pin of class " + std::to_string(model.net_classes[net]) + ", its net's");
      }
    }
    const auto pin = model.net_pins[root];
    if (pin % 2 != 0 || model.type_classes[pin + 1] >= 0) {
      fail("net_pins", root, pin, "a root, of a type of one class");
    }
  }
}

void check_positive(const std::string& name, double value) {
  if (!(std::isfinite(value) && value > 0)) {
    throw InvalidHypergraph(name + " is " + std::to_string(value) + ", expected more than 0");
  }
}

void check_options(const AnnealingOptions& options, const std::string& chain) {
  if (options.steps < 0) fail(chain + "steps", options.steps, "0 or more");
  check_positive(chain + "hottest", options.hottest);
  check_positive(chain + "coldest", options.coldest);
  if (!(std::isfinite(options.price) && options.price >= 0)) {
    throw InvalidHypergraph(chain + "price is " + std::to_string(options.price) +
                            ", expected 0 or more");
  }
}

void check_rows(const SymmetricModel& model, const Goal& goal, const Rows& start,
                const std::string& chain) {
  const auto sizes = chain + "sizes", parts = chain + "parts";
  check_length(sizes, start.sizes.size(), model.classes(), "one per class");
  check_length(parts, start.parts.size(), model.types(), "one per type");
  for (std::int64_t c = 0; c < model.classes(); ++c) {
    const auto own = sizes + "[" + std::to_string(c) + "]";
    std::int64_t units = 0;
    for (std::size_t row = 0; row < start.sizes[c].size(); ++row) {
      if (start.sizes[c][row] < 1) fail(own, row, start.sizes[c][row], "1 or more");
      add_checked(units, start.sizes[c][row], "number of units");
    }
    if (units != model.class_units[c]) {
      fail("sum of " + own, units, std::to_string(model.class_units[c]) + ", the units of the class");
    }
  }
  const auto rows = [&](std::int32_t c) {
    return static_cast<std::int64_t>(start.sizes[c].size());
  };
  for (std::int64_t type = 0; type < model.types(); ++type) {
    const auto own = parts + "[" + std::to_string(type) + "]";
    check_length(own, start.parts[type].size(), of_type(model, type, rows, "number of rows"),
                 "one per row, or pair of rows");
    check_below(own, span_of(start.parts[type]), goal.capacities.size);
    for (std::size_t at = 0; at < start.parts[type].size(); ++at) {
      const auto part = start.parts[type][at];
      if (!model.may_lie(static_cast<std::int32_t>(type), part,
                         static_cast<std::int32_t>(goal.capacities.size))) {
        fail(own, at, part, "a part that the type may lie in");
      }
    }
  }
}

// Whether the tables of a Division have room; see there what they hold.
void check_tables(const SymmetricModel& model, const Goal& goal, const Rows& start,
                  const AnnealingOptions& options, const std::string& chain) {
  const auto k = goal.capacities.size;
  const auto limit = [&](const char* what, std::int64_t count, std::int64_t most) {
    if (count > most) fail(chain + "number of " + what, count, "at most " + std::to_string(most));
  };
  const auto rows = [&](std::int32_t c) {
    return most_rows_of(model.class_units[c], start.sizes[c].size(), options.most_rows);
  };
  const auto vertices = [&](std::int64_t type) {
    return of_type(model, type, rows, "number of vertices");
  };
  std::int64_t all_rows = 0, all_vertices = 0, nets = 0, pins = 0, set_members = 0;
  for (std::int32_t c = 0; c < model.classes(); ++c) {
    add_checked(all_rows, rows(c), "number of rows");
  }
  limit("rows", all_rows, kMaxVertices);
  for (std::int64_t type = 0; type < model.types(); ++type) {
    add_checked(all_vertices, vertices(type), "number of vertices");
  }
  limit("vertices", all_vertices, kMaxVertices);
  for (std::int64_t net = 0; net < model.nets(); ++net) {
    add_checked(nets, of_net(model, net, rows, "number of nets"), "number of nets");
  }
  limit("nets times k", multiply_checked(nets, k, "number of nets"), kMaxCounts);
  // A count of them is never more than all of them.
  for (const auto pin : model.net_pins) add_checked(pins, vertices(pin / 2), "number of pins");
  limit("pins", pins, kMaxCounts);
  for (const auto type : model.set_types) {
    add_checked(set_members, vertices(type), "number of readers");
  }
  limit("readers", set_members, kMaxCounts);
  const auto of_sets = multiply_checked(model.sets(), k, "number of sets");
  limit("sets times k", of_sets, kMaxCounts);
  if (has_traffic(goal)) {
    limit("sets times k times k", multiply_checked(of_sets, k, "number of sets"), kMaxCounts);
  }
}

// Of each type a layer, of which there are no more than types; and times that 64 bits can hold.
void check_time(const Goal& goal, const SymmetricModel& model) {
  if (goal.micro_batches < 1) fail("micro_batches", goal.micro_batches, "1 or more");
  for (const auto& [name, time] : {std::pair{"work_time", goal.work_time},
                                   std::pair{"link_time", goal.link_time}}) {
    if (!(std::isfinite(time) && time >= 0)) {
      throw InvalidHypergraph(std::string(name) + " is " + std::to_string(time) +
                              ", expected 0 or more");
    }
  }
  if (goal.objective != Objective::kTime) return;
  check_length("type_layers", goal.type_layers.size, model.types(), "one per type");
  check_below("type_layers", goal.type_layers, model.types());
  check_length("slowness", goal.slowness.size, goal.capacities.size, "one per part");
  check_not_negative("slowness", goal.slowness);
  const char* what = "total weight on the slowest part";
  const auto work = static_cast<double>(
      multiply_checked(total_of_types(model, model.type_weights, what),
                       *std::max_element(goal.slowness.begin(), goal.slowness.end()), what));
  double bytes = 0;
  for (std::int64_t net = 0; net < model.nets(); ++net) {
    const auto units =
        of_net(model, net, [&](std::int32_t c) { return model.class_units[c]; }, "volume");
    bytes += static_cast<double>(model.net_costs[net]) * static_cast<double>(units);
  }
  const auto dearest =
      static_cast<double>(*std::max_element(goal.links.begin(), goal.links.end()));
  const auto k = static_cast<double>(goal.capacities.size);
  if (goal.work_time * work + goal.link_time * dearest * 2 * k * bytes > 9e18) {
    throw InvalidHypergraph("a step takes too long for 64 bits of nanoseconds");
  }
}

}  // namespace

void check_model(const SymmetricModel& model) {
  check_types(model);
  check_sets(model);
  check_nets(model);
}

void check_goal(const Goal& goal, const SymmetricModel& model) {
  check_capacities(goal.capacities);
  if (model.type_parts.size > 0) {
    check_length("type_parts", model.type_parts.size, model.types() * goal.capacities.size,
                 "one per type and part, or none");
  }
  const auto k = goal.capacities.size;
  if (goal.memory.size > 0) check_length("memory", goal.memory.size, k, "one per part, or none");
  check_not_negative("memory", goal.memory);
  if (goal.objective < Objective::kVolume || goal.objective > Objective::kTime) {
    fail("objective", static_cast<std::int32_t>(goal.objective), "0, 1, 2 or 3");
  }
  if (goal.links.size > 0 || goal.objective >= Objective::kLinks) {
    check_length("links", goal.links.size, k * k, "one per pair of parts");
  }
  check_time(goal, model);
  check_not_negative("links", goal.links);

  // The volume, and on its way what it was and what it will be.
  const char* what = "volume where all nets are in all parts";
  std::int64_t once = 0, kept = 0;
  for (std::int64_t net = 0; net < model.nets(); ++net) {
    const auto units =
        of_net(model, net, [&](std::int32_t c) { return model.class_units[c]; }, what);
    add_checked(once, multiply_checked(model.net_costs[net], units, what), what);
    add_checked(kept, multiply_checked(model.net_memory[net], units, kMemory), kMemory);
  }
  if (model.type_prices.size > 0) {
    check_length("type_prices", model.type_prices.size, model.types() * k,
                 "one per type and part, or none");
    check_not_negative("type_prices", model.type_prices);
    const auto units = [&](std::int32_t c) { return model.class_units[c]; };
    for (std::int64_t type = 0; type < model.types(); ++type) {
      const auto* prices = &model.type_prices[type * k];
      const auto dearest = *std::max_element(prices, prices + k);
      add_checked(once, multiply_checked(dearest, of_type(model, type, units, what), what), what);
    }
  }
  if (!has_traffic(goal)) {
    multiply_checked(once, std::max<std::int64_t>(1, k - 1), what);
    return;
  }
  auto most = multiply_checked(once, 2 * k, what);
  if (goal.links.size > 0) {
    multiply_checked(most, *std::max_element(goal.links.begin(), goal.links.end()),
                     "cost of the links where all nets are in all parts");
  }
  add_checked(most, total_of_types(model, model.type_memory, kMemory), kMemory);
  add_checked(most, multiply_checked(kept, k, kMemory), kMemory);
}

void check_chain(const SymmetricModel& model, const Goal& goal, const Rows& start,
                 const AnnealingOptions& options, std::int64_t number) {
  const auto chain = "chains[" + std::to_string(number) + "].";
  check_options(options, chain);
  check_rows(model, goal, start, chain);
  check_tables(model, goal, start, options, chain);
}

}  // namespace hgpart
