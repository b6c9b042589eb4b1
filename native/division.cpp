#include "division.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hgpart {

namespace {

// Spreads an integer over 64 bits (the finalizer of SplitMix64: Steele, Lea and Flood, 2014).
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

std::uint64_t key(std::int32_t typed, std::int32_t other, std::int32_t part) {
  return mix(mix(static_cast<std::uint64_t>(typed) << 32 | static_cast<std::uint32_t>(other)) +
             static_cast<std::uint32_t>(part));
}

}  // namespace

Division::Division(const SymmetricModel& model, const Goal& goal, const Rows& start,
                   std::int64_t most_rows)
    : model_(model),
      objective_(goal.objective),
      k_(static_cast<std::int32_t>(goal.capacities.size)),
      words_((k_ + 63) / 64),
      work_(goal.capacities, k_),
      memory_(goal.memory, k_) {
  if (has_traffic(goal)) {
    std::vector<char> gathers(model.sets(), false);
    for (std::int64_t net = 0; net < model.nets(); ++net) {
      gathers[model.net_sets[net]] = model.net_gathers[net];
    }
    traffic_.emplace(goal, std::move(gathers), memory_);
  }
  if (objective_ == Objective::kTime) time_.emplace(goal);
  first_row_.push_back(0);
  for (std::int64_t c = 0; c < model.classes(); ++c) {
    const auto started = static_cast<std::int64_t>(start.sizes[c].size());
    const auto rows = most_rows_of(model.class_units[c], started, most_rows);
    first_row_.push_back(first_row_.back() + static_cast<std::int32_t>(rows));
  }
  const std::size_t nets = index(), sets = model.sets();
  const std::size_t rows = first_row_.back();
  size_.assign(rows, 0);
  hash_.assign(rows, 0);
  place_in_active_.assign(rows, -1);
  active_.resize(model.classes());
  free_.resize(model.classes());
  part_.assign(vertices_.size(), 0);
  place_.assign(vertices_.size(), -1);
  members_.resize(k_);
  pins_.assign(nets * k_, 0);
  mask_.assign(nets * words_, 0);
  support_.assign(sets * k_, 0);
  supports_.assign(sets, 0);
  set_cost_.assign(sets, 0);
  part_cost_.assign(sets * k_, 0);
  side_counts_.assign(model.sides() * k_, 0);

  for (std::int64_t t = 0; t < model.types(); ++t) {
    const auto row_class = model.type_classes[2 * t], column_class = model.type_classes[2 * t + 1];
    const auto rows_of_type = start.sizes[row_class].size();
    const auto columns = column_class < 0 ? 1 : start.sizes[column_class].size();
    for (std::size_t row = 0; row < rows_of_type; ++row) {
      for (std::size_t column = 0; column < columns; ++column) {
        const auto v = vertex_at(
            static_cast<std::int32_t>(2 * t), first_row_[row_class] + static_cast<std::int32_t>(row),
            column_class < 0 ? -1 : first_row_[column_class] + static_cast<std::int32_t>(column));
        part_[v] = start.parts[t][row * columns + column];
      }
    }
  }
  for (std::int64_t c = 0; c < model.classes(); ++c) {
    const auto first = first_row_[c];
    for (auto row = first_row_[c + 1] - 1; row >= first; --row) free_[c].push_back(row);
    for (const auto units : start.sizes[c]) {
      activate(free_[c].back(), units);
    }
  }
  for (std::int32_t c = 0; c < model.classes(); ++c) {
    const auto rows_of_class = active_[c];
    for (const auto row : rows_of_class) merge(row);
  }
  log_.clear();
}

std::int64_t Division::index() {
  class_types_.resize(model_.classes());
  class_nets_.resize(model_.classes());
  type_nets_.resize(model_.types());
  type_sets_.resize(model_.types());
  type_sides_.resize(model_.types());
  for (std::int32_t at = 0; at < model_.type_sides.size; ++at) {
    const auto types = static_cast<std::int32_t>(model_.types());
    if (model_.type_sides[at]) type_sides_[at % types].push_back(at / types);
  }
  rooted_nets_.resize(model_.types());
  set_nets_.resize(model_.sets());
  class_of_row_.resize(first_row_.back());
  for (std::int32_t c = 0; c < model_.classes(); ++c) {
    std::fill(class_of_row_.begin() + first_row_[c], class_of_row_.begin() + first_row_[c + 1], c);
  }
  const auto rows_of = [&](std::int32_t c) { return first_row_[c + 1] - first_row_[c]; };
  // Rows are numbered through all classes; entries of a type come one after the other.
  const auto place = [&](std::int64_t first, std::int32_t row_class, std::int32_t column_class) {
    const std::int64_t first_row = first_row_[row_class];
    if (column_class < 0) return Place{first - first_row, 1, false};
    const auto columns = rows_of(column_class);
    return Place{first - first_row * columns - first_row_[column_class], columns, true};
  };
  for (std::int32_t t = 0; t < model_.types(); ++t) {
    const auto row_class = model_.type_classes[2 * t], column_class = model_.type_classes[2 * t + 1];
    places_.push_back(
        place(static_cast<std::int64_t>(vertices_.size()), row_class, column_class));
    class_types_[row_class].push_back(2 * t);
    if (column_class >= 0) class_types_[column_class].push_back(2 * t + 1);
    for (auto row = first_row_[row_class]; row < first_row_[row_class + 1]; ++row) {
      if (column_class < 0) {
        vertices_.push_back({t, row, -1});
        continue;
      }
      for (auto column = first_row_[column_class]; column < first_row_[column_class + 1]; ++column) {
        vertices_.push_back({t, row, column});
      }
    }
  }
  std::int64_t nets = 0;
  for (std::int32_t s = 0; s < model_.nets(); ++s) {
    const auto c = model_.net_classes[s], crossing = model_.net_crossings[s];
    net_places_.push_back(place(nets, c, crossing));
    nets += std::int64_t{rows_of(c)} * (crossing < 0 ? 1 : rows_of(crossing));
    class_nets_[c].push_back(2 * s);
    if (crossing >= 0) class_nets_[crossing].push_back(2 * s + 1);
    set_nets_[model_.net_sets[s]].push_back(s);
    rooted_nets_[model_.net_pins[model_.net_pointers[s]] / 2].push_back(s);
    for (auto at = model_.net_pointers[s]; at < model_.net_pointers[s + 1]; ++at) {
      const auto pin = model_.net_pins[at];
      type_nets_[pin / 2].push_back(2 * s + pin % 2);
    }
  }
  for (std::int32_t set = 0; set < model_.sets(); ++set) {
    for (auto at = model_.set_pointers[set]; at < model_.set_pointers[set + 1]; ++at) {
      type_sets_[model_.set_types[at]].push_back(set);
    }
  }
  index_neighbours();
  return nets;
}

void Division::index_neighbours() {
  adjacent_.resize(model_.types());
  const auto pins = [&](std::int32_t s) {
    std::vector<std::int32_t> types;
    for (auto at = model_.net_pointers[s]; at < model_.net_pointers[s + 1]; ++at) {
      types.push_back(model_.net_pins[at] / 2);
    }
    return types;
  };
  for (std::int32_t s = 0; s < model_.nets(); ++s) {
    const auto own = pins(s);
    const auto set = model_.net_sets[s];
    for (const auto type : own) {
      adjacent_[type].insert(adjacent_[type].end(), own.begin(), own.end());
      for (auto at = model_.set_pointers[set]; at < model_.set_pointers[set + 1]; ++at) {
        adjacent_[type].push_back(model_.set_types[at]);
        adjacent_[model_.set_types[at]].push_back(type);
      }
    }
  }
  for (std::int32_t type = 0; type < model_.types(); ++type) {
    auto& types = adjacent_[type];
    std::sort(types.begin(), types.end());
    types.erase(std::unique(types.begin(), types.end()), types.end());
    types.erase(std::remove(types.begin(), types.end(), type), types.end());
  }
}

Rows Division::rows() const {
  Rows result;
  for (const auto& rows : active_) {
    result.sizes.emplace_back();
    for (const auto row : rows) result.sizes.back().push_back(size_[row]);
  }
  for (std::int32_t t = 0; t < model_.types(); ++t) {
    result.parts.emplace_back();
    const auto column_class = model_.type_classes[2 * t + 1];
    for (const auto row : active_[model_.type_classes[2 * t]]) {
      if (column_class < 0) {
        result.parts.back().push_back(part_[vertex_at(2 * t, row, -1)]);
        continue;
      }
      for (const auto column : active_[column_class]) {
        result.parts.back().push_back(part_[vertex_at(2 * t, row, column)]);
      }
    }
  }
  return result;
}

// ------------------------------------------------------------------ costs and loads

std::int64_t Division::cost() const {
  switch (objective_) {
    case Objective::kLargest: return traffic_->largest();
    case Objective::kLinks: return traffic_->links();
    case Objective::kTime: return std::llround(time_->value(traffic_->exchanged()));
    default: return volume_;
  }
}

double Division::smooth_cost() const {
  if (objective_ == Objective::kLargest) return traffic_->smooth_largest();
  if (objective_ == Objective::kTime) return time_->smooth_value(traffic_->exchanged());
  return static_cast<double>(cost());
}

double Division::excess() const {
  double sum = 0;
  for (const Budget* budget : {&work_, &memory_}) {
    if (budget->excess() > 0) {
      sum += static_cast<double>(budget->excess()) /
             std::max(1.0, budget->total());
    }
  }
  return sum;
}

// The vertex stands for so many more tasks (or cells of them).
void Division::add_load(std::int32_t v, std::int64_t units) {
  ++touches_;
  const auto type = vertices_[v].type;
  work_.add(part_[v], model_.type_weights[type] * units);
  if (model_.type_prices.size > 0) {
    volume_ += model_.type_prices[std::int64_t{type} * k_ + part_[v]] * units;
  }
  if (time_) time_->add_work(type, part_[v], model_.type_weights[type] * units);
  if (memory_.limited()) memory_.add(part_[v], model_.type_memory[type] * units);
}

void Division::count_side(std::int32_t side, std::int32_t part, std::int32_t change) {
  const auto other = side_counts_[static_cast<std::size_t>(side ^ 1) * k_ + part];
  auto& count = side_counts_[static_cast<std::size_t>(side) * k_ + part];
  const bool was = count > 0;
  count += change;
  if (other > 0) conflicts_ += (count > 0) - was;
}

void Division::enter_set(std::int32_t set, std::int32_t part) {
  const auto at = static_cast<std::size_t>(set) * k_ + part;
  if (support_[at]++ > 0) return;
  ++supports_[set];
  volume_ += set_cost_[set] - part_cost_[at];
  if (traffic_) traffic_->support(set, part, 1);
}

void Division::leave_set(std::int32_t set, std::int32_t part) {
  const auto at = static_cast<std::size_t>(set) * k_ + part;
  if (--support_[at] > 0) return;
  --supports_[set];
  volume_ -= set_cost_[set] - part_cost_[at];
  if (traffic_) traffic_->support(set, part, -1);
}

void Division::enter_net(const Net& net, std::int32_t part) {
  const auto index = index_of(net);
  if (pins_[index * k_ + part]++ > 0) return;
  mask_[index * words_ + part / 64] |= std::uint64_t{1} << (part % 64);
  const auto set = model_.net_sets[net.type];
  const auto at = static_cast<std::size_t>(set) * k_ + part;
  const auto cost = cost_of(net);
  part_cost_[at] += cost;
  if (support_[at] == 0) volume_ += cost;
  if (memory_.limited()) memory_.add(part, units(net) * model_.net_memory[net.type]);
  if (traffic_) {
    traffic_->pin(set, root(net), part, cost, model_.net_gathers[net.type],
                  model_.net_keeps[net.type], support_[at] == 0);
  }
}

void Division::leave_net(const Net& net, std::int32_t part) {
  const auto index = index_of(net);
  if (--pins_[index * k_ + part] > 0) return;
  mask_[index * words_ + part / 64] &= ~(std::uint64_t{1} << (part % 64));
  const auto set = model_.net_sets[net.type];
  const auto at = static_cast<std::size_t>(set) * k_ + part;
  const auto cost = cost_of(net);
  part_cost_[at] -= cost;
  if (support_[at] == 0) volume_ -= cost;
  if (memory_.limited()) memory_.add(part, -units(net) * model_.net_memory[net.type]);
  if (traffic_) {
    traffic_->pin(set, root(net), part, -cost, model_.net_gathers[net.type],
                  model_.net_keeps[net.type], support_[at] == 0);
  }
}

// The row has more units (or fewer) than before: its nets cost more.
void Division::change_cost(std::int32_t row, std::int64_t before, std::int64_t after) {
  const auto row_class = class_of_row_[row];
  for (const auto typed : class_nets_[row_class]) {
    const auto s = typed / 2, axis = typed % 2;
    if (!net_places_[s].crossed) {
      change_cost({s, row, -1}, after - before);
      continue;
    }
    const auto other = axis == 0 ? model_.net_crossings[s] : model_.net_classes[s];
    for (const auto crossing : active_[other]) {
      if (crossing == row) {
        if (axis == 0) change_cost({s, row, row}, after * after - before * before);
      } else if (axis == 0) {
        change_cost({s, row, crossing}, (after - before) * size_[crossing]);
      } else {
        change_cost({s, crossing, row}, (after - before) * size_[crossing]);
      }
    }
  }
}

void Division::change_cost(const Net& net, std::int64_t units) {
  const auto s = net.type, set = model_.net_sets[s];
  const auto index = index_of(net);
  const auto cost = units * model_.net_costs[s];
  set_cost_[set] += cost;
  volume_ += cost * (supports_[set] - 1);
  const auto root_part = traffic_ ? root(net) : 0;
  if (traffic_) {
    traffic_->root(set, root_part, cost, &support_[static_cast<std::size_t>(set) * k_]);
  }
  for (std::int32_t word = 0; word < words_; ++word) {
    for (auto bits = mask_[index * words_ + word]; bits != 0; bits &= bits - 1) {
      const auto part = 64 * word + __builtin_ctzll(bits);
      const auto at = static_cast<std::size_t>(set) * k_ + part;
      part_cost_[at] += cost;
      if (support_[at] == 0) volume_ += cost;
      if (memory_.limited()) memory_.add(part, units * model_.net_memory[s]);
      if (traffic_) {
        traffic_->pin(set, root_part, part, cost, model_.net_gathers[s], model_.net_keeps[s],
                      support_[at] == 0);
      }
    }
  }
}

// The other pins of the nets that the vertex roots exchange with another part.
void Division::root_moves(std::int32_t v, std::int32_t from, std::int32_t to) {
  for (const auto s : rooted_nets_[vertices_[v].type]) {
    const Net net = net_of(2 * s, vertices_[v]);
    const auto index = index_of(net);
    const auto set = model_.net_sets[s];
    const auto cost = cost_of(net);
    const auto* support = &support_[static_cast<std::size_t>(set) * k_];
    traffic_->root(set, from, -cost, support);
    traffic_->root(set, to, cost, support);
    for (std::int32_t word = 0; word < words_; ++word) {
      for (auto bits = mask_[index * words_ + word]; bits != 0; bits &= bits - 1) {
        const auto part = 64 * word + __builtin_ctzll(bits);
        const bool outside = support[part] == 0;
        const bool gathers = model_.net_gathers[s], keeps = model_.net_keeps[s];
        traffic_->pin(set, from, part, -cost, gathers, keeps, outside);
        traffic_->pin(set, to, part, cost, gathers, keeps, outside);
      }
    }
  }
}

// ------------------------------------------------------------------ changes

void Division::attach(std::int32_t v) {
  const Vertex& at = vertices_[v];
  const auto part = part_[v];
  add_load(v, units(at));
  place_[v] = static_cast<std::int32_t>(members_[part].size());
  members_[part].push_back(v);
  hash_[at.row] ^= key(2 * at.type, at.column, part);
  if (at.column >= 0) hash_[at.column] ^= key(2 * at.type + 1, at.row, part);
  for (const auto net : type_nets_[at.type]) enter_net(net_of(net, at), part);
  for (const auto set : type_sets_[at.type]) enter_set(set, part);
  for (const auto side : type_sides_[at.type]) count_side(side, part, 1);
}

void Division::detach(std::int32_t v) {
  const Vertex& at = vertices_[v];
  const auto part = part_[v];
  add_load(v, -units(at));
  auto& left = members_[part];
  place_[left.back()] = place_[v];
  left[place_[v]] = left.back();
  left.pop_back();
  hash_[at.row] ^= key(2 * at.type, at.column, part);
  if (at.column >= 0) hash_[at.column] ^= key(2 * at.type + 1, at.row, part);
  for (const auto net : type_nets_[at.type]) leave_net(net_of(net, at), part);
  for (const auto set : type_sets_[at.type]) leave_set(set, part);
  for (const auto side : type_sides_[at.type]) count_side(side, part, -1);
}

void Division::relocate(std::int32_t v, std::int32_t to) {
  detach(v);
  if (traffic_) root_moves(v, part_[v], to);
  part_[v] = to;
  attach(v);
}

void Division::resize(std::int32_t row, std::int64_t units) {
  const auto before = size_[row];
  change_cost(row, before, units);
  for_each_vertex(row, [&](std::int32_t v) {
    const auto old_units = this->units(vertices_[v]);
    size_[row] = units;
    add_load(v, this->units(vertices_[v]) - old_units);
    size_[row] = before;
  });
  size_[row] = units;
}

// A free row gets units; its vertices are in the parts that `part_` says.
void Division::activate(std::int32_t row, std::int64_t units) {
  const auto row_class = class_of_row_[row];
  free_[row_class].pop_back();  // it is the last: changes are undone in reverse
  place_in_active_[row] = static_cast<std::int32_t>(active_[row_class].size());
  active_[row_class].push_back(row);
  size_[row] = units;
  change_cost(row, 0, units);
  for_each_vertex(row, [&](std::int32_t v) { attach(v); });
}

void Division::deactivate(std::int32_t row) {
  const auto row_class = class_of_row_[row];
  for_each_vertex(row, [&](std::int32_t v) { detach(v); });
  change_cost(row, size_[row], 0);
  size_[row] = 0;
  auto& rows = active_[row_class];
  place_in_active_[rows.back()] = place_in_active_[row];
  rows[place_in_active_[row]] = rows.back();
  rows.pop_back();
  free_[row_class].push_back(row);
}

void Division::move(std::int32_t v, std::int32_t to) {
  log_.push_back({Change::kMove, v, part_[v]});
  relocate(v, to);
}

std::int32_t Division::split(std::int32_t row, std::int64_t n) {
  if (n == size_[row]) return row;
  const auto row_class = class_of_row_[row];
  if (free_[row_class].empty()) return -1;
  const auto fresh = free_[row_class].back();
  for (const auto typed : class_types_[row_class]) {
    const auto other = model_.type_classes[2 * (typed / 2) + 1 - typed % 2];
    if (other < 0) {
      part_[vertex_at(typed, fresh, -1)] = part_[vertex_at(typed, row, -1)];
      continue;
    }
    for (const auto crossing : active_[other]) {
      part_[vertex_at(typed, fresh, crossing)] = part_[vertex_at(typed, row, crossing)];
    }
    if (other == row_class) {
      part_[vertex_at(typed, fresh, fresh)] = part_[vertex_at(typed, row, row)];
    }
  }
  log_.push_back({Change::kResize, row, size_[row]});
  resize(row, size_[row] - n);
  log_.push_back({Change::kActivate, fresh, 0});
  activate(fresh, n);
  return fresh;
}

void Division::shift(std::int32_t from, std::int32_t to, std::int64_t n) {
  log_.push_back({Change::kResize, from, size_[from]});
  resize(from, size_[from] - n);
  log_.push_back({Change::kResize, to, size_[to]});
  resize(to, size_[to] + n);
}

void Division::merge(std::int32_t row) {
  for (const auto other : active_[class_of_row_[row]]) {
    if (other == row || hash_[other] != hash_[row]) continue;
    const auto units = size_[row];
    log_.push_back({Change::kDeactivate, row, units});
    deactivate(row);
    log_.push_back({Change::kResize, other, size_[other]});
    resize(other, size_[other] + units);
    return;
  }
}

void Division::undo() {
  while (!log_.empty()) {
    const Change change = log_.back();
    log_.pop_back();
    switch (change.kind) {
      case Change::kMove: relocate(change.at, static_cast<std::int32_t>(change.before)); break;
      case Change::kResize: resize(change.at, change.before); break;
      case Change::kActivate: deactivate(change.at); break;
      case Change::kDeactivate: activate(change.at, change.before); break;
    }
  }
}

std::int32_t Division::neighbour(std::int32_t v, std::uint64_t random) const {
  const Vertex& at = vertices_[v];
  const auto& nets = type_nets_[at.type];
  const auto& sets = type_sets_[at.type];
  const auto choices = nets.size() + sets.size();
  if (choices == 0) return part_[v];
  const auto pick = [&random](std::size_t count) {
    const auto chosen = random % count;
    random = mix(random);
    return static_cast<std::size_t>(chosen);
  };
  const auto some_row = [&](std::int32_t row_class) {
    return active_[row_class][pick(active_[row_class].size())];
  };
  const auto vertex_of = [&](std::int32_t typed, std::int32_t row) {
    const auto other = model_.type_classes[2 * (typed / 2) + 1 - typed % 2];
    return vertex_at(typed, row, other < 0 ? -1 : some_row(other));
  };
  const auto chosen = pick(choices);
  if (chosen >= nets.size()) {  // a map that the vertex reads with all others of its set
    const auto& senders = set_nets_[sets[chosen - nets.size()]];
    if (senders.empty()) return part_[v];
    const auto s = senders[pick(senders.size())];
    const auto pin = model_.net_pointers[s] + pick(model_.net_pointers[s + 1] - model_.net_pointers[s]);
    return part_[vertex_of(model_.net_pins[pin], some_row(model_.net_classes[s]))];
  }
  const auto s = nets[chosen] / 2;
  const auto row = nets[chosen] % 2 == 0 ? at.row : at.column;
  const auto set = model_.net_sets[s];
  const auto own = model_.net_pointers[s + 1] - model_.net_pointers[s];
  if (net_places_[s].crossed) {
    return part_[vertex_at(model_.net_pins[model_.net_pointers[s] + pick(own)], at.row, at.column)];
  }
  const auto readers = model_.set_pointers[set + 1] - model_.set_pointers[set];
  if (readers > 0 && (own == 1 || pick(2) == 0)) {
    const auto type = model_.set_types[model_.set_pointers[set] + pick(readers)];
    return part_[vertex_of(2 * type, some_row(model_.type_classes[2 * type]))];
  }
  return part_[vertex_of(model_.net_pins[model_.net_pointers[s] + pick(own)], row)];
}

}  // namespace hgpart
