#include "annealing.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "clusters.hpp"
#include "random.hpp"

namespace hgpart {

namespace {

constexpr int kMostNeighbours = 8;  // whose shares move after another
constexpr int kAttempts = 4;  // to meet another part beside what moves
constexpr int kMostExchanges = 3;  // moves that make room after the first
// Vertices that a chain may touch for each of its steps: more, where hundreds of layers are divided
// alike, end it as that many more steps would.
constexpr double kTouchesAStep = 50;

using Rank = std::pair<double, std::int64_t>;  // excess and cost: less is better

class Annealing {
 public:
  Annealing(const SymmetricModel& model, const Goal& goal, const Rows& start,
            const AnnealingOptions& options, const std::function<bool(std::int64_t)>& go_on)
      : model_(model),
        k_(static_cast<std::int32_t>(goal.capacities.size)),
        options_(options),
        go_on_(go_on),
        division_(model, goal, start, options.most_rows),
        random_(options.seed),
        place_of_type_(model.types()) {
    scale_ = std::max(1.0, division_.smooth_cost());
    for (Price* price : {&work_, &memory_}) {
      price->now = options.price * scale_ /
                   std::max(1.0, price->budget.total());
      price->least = 0.1 * price->now;
    }
    for (std::int64_t at = 0; at < model_.tiles.size; ++at) {
      const auto type = model_.tiles[at];
      if (type >= 0) place_of_type_[type] = static_cast<std::int32_t>(at);
    }
    for (std::int32_t type = 0; type < model_.types(); ++type) {
      const auto group = model_.group(type);
      if (group < 0) continue;
      if (group >= static_cast<std::int32_t>(group_types_.size())) group_types_.resize(group + 1);
      group_types_[group].push_back(type);
    }
    if (model_.bands > 1) {
      const auto most = *std::max_element(goal.capacities.begin(), goal.capacities.end());
      clusters_ = clusters_of(model, most, options.seed);
    }
    best_rank_ = rank();
    best_ = division_.rows();
  }

  AnnealingResult run() {
    const double cooling = std::log(options_.coldest / options_.hottest);
    const auto steps = static_cast<double>(options_.steps);
    const auto first = static_cast<double>(division_.touches());
    std::int64_t told = 0;
    for (std::int64_t step = 0; step < options_.steps; ++step) {
      if (step % kStepsBetweenQuestions == 0) {
        const auto touches = static_cast<double>(division_.touches()) - first;
        progress_ = std::max(static_cast<double>(step), touches / kTouchesAStep) / steps;
        const auto done = std::llround(steps * progress_);
        if (!go_on_(done - told) || progress_ >= 1) break;
        told = done;
        temperature_ = scale_ * options_.hottest * std::exp(cooling * progress_);
        for (Price* price : {&work_, &memory_}) price->adapt();
      }
      try_step();
    }
    keep_best();
    return {std::move(best_), best_rank_.second, best_rank_.first};
  }

 private:
  void try_step() {
    if (k_ < 2) return;
    const double before = energy();
    const Rank left = rank();
    division_.begin();
    touched_.clear();
    if (!propose() || division_.conflicts() > 0) {
      division_.undo();
      return;
    }
    const double change = energy() - before;
    if (change > 0 && random_.unit() >= std::exp(-change / temperature_)) {
      division_.undo();
      return;
    }
    if (left < best_rank_ && left < rank()) {
      // The best so far is about to be left for a worse one; also where the energy falls, as it does
      // if overloading a part saves more than that costs.
      undo_and_keep();
    }
    for (const auto row : touched_) {
      if (division_.size(row) > 0) division_.merge(row);
    }
  }

  // What a unit above the limits costs: more as long as there are any.
  struct Price {
    const Budget& budget;
    double now = 0, least = 0;
    void adapt() { now = budget.excess() > 0 ? now * 1.1 : std::max(least, now * 0.95); }
    double paid() const { return now * static_cast<double>(budget.excess()); }
  };

  Rank rank() const { return {division_.excess(), division_.cost()}; }

  void undo_and_keep() {
    division_.undo();
    keep_best();
    touched_.clear();
  }

  void keep_best() {
    if (best_rank_ <= rank()) return;
    best_rank_ = rank();
    best_ = division_.rows();
  }

  double energy() const {
    return division_.smooth_cost() + work_.paid() + memory_.paid();
  }

  std::int32_t some_vertex() {
    for (;;) {
      const auto& members = division_.members(static_cast<std::int32_t>(random_.below(k_)));
      if (!members.empty()) return members[random_.below(members.size())];
    }
  }

  bool may_lie(std::int32_t v, std::int32_t part) const {
    return model_.may_lie(division_.vertex(v).type, part, k_);
  }

  // A part for a vertex: where what it exchanges maps with lies, or any. Its own, where it may lie in
  // no other.
  std::int32_t some_part(std::int32_t v) {
    const auto from = division_.part(v);
    if (random_.below(8) > 0) {
      for (int attempt = 0; attempt < kAttempts; ++attempt) {
        const auto part = division_.neighbour(v, random_.next());
        if (part != from && may_lie(v, part)) return part;
      }
    }
    const auto chosen = static_cast<std::int32_t>(random_.below(k_ - 1));
    auto part = chosen < from ? chosen : chosen + 1;
    for (std::int32_t step = 0; step < k_; ++step, part = (part + 1) % k_) {
      if (part != from && may_lie(v, part)) return part;
    }
    return from;
  }

  bool propose() {
    const auto v = some_vertex();
    const auto from = division_.part(v);
    auto to = some_part(v);
    if (to == from) return false;
    shares_.clear();
    if (clusters_.levels() > 0 && random_.below(2) == 0) {
      to = move_clusters(v, to);
      follow();
      make_room(from, to);
      return true;
    }
    if (model_.has_tiles() && random_.below(2) == 0) {
      move_in_tiles(v, to);
      follow();
      make_room(from, to);
      return true;
    }
    switch (random_.below(8)) {
      case 0:
        move_with_neighbours(v, to);
        break;
      case 1:
        move_share(division_.vertex(v).type, from, to);
        break;
      case 2: {
        const auto& members = division_.members(to);
        if (members.empty()) return false;
        const auto other = division_.vertex(members[random_.below(members.size())]).type;
        move_share(division_.vertex(v).type, from, to);
        move_share(other, to, from);
        break;
      }
      case 3:
        if (!shift_units(v)) return false;
        break;
      default:
        move_units(v, to, random_.below(2) == 0);
        shares_.push_back({division_.vertex(v).type, from, to});
    }
    follow();
    make_room(from, to);
    return true;
  }

  struct Share {
    std::int32_t type, from, to;
  };

  // A cluster of types, or two in exchange, to a part that some of it exchanges maps with, which is
  // returned. They are of smaller and smaller levels as it gets colder.
  std::int32_t move_clusters(std::int32_t v, std::int32_t to) {
    const auto larger = static_cast<double>(clusters_.levels() - 1) * (1 - progress_);
    const auto level = random_.below(1 + std::llround(larger));
    const auto& of_type = clusters_.of_type[level];
    const auto from = division_.part(v), own = of_type[division_.vertex(v).type];
    const auto& types = clusters_.members[level][own];
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const auto type = types[random_.below(types.size())];
      const auto part = division_.neighbour(some_of(type), random_.next());
      if (part == from) continue;
      to = part;
      break;
    }
    for (const auto type : types) move_share(type, from, to);
    const auto& members = division_.members(to);
    if (random_.below(2) == 0 || members.empty()) return to;
    const auto other = of_type[division_.vertex(members[random_.below(members.size())]).type];
    if (other == own) return to;
    for (const auto type : clusters_.members[level][other]) move_share(type, to, from);
    return to;
  }

  // A vertex of a type.
  std::int32_t some_of(std::int32_t type) {
    const auto column_class = model_.type_classes[2 * type + 1];
    const auto& rows = division_.active(model_.type_classes[2 * type]);
    const auto row = rows[random_.below(rows.size())];
    if (column_class < 0) return division_.vertex_at(2 * type, row, -1);
    const auto& columns = division_.active(column_class);
    return division_.vertex_at(2 * type, row, columns[random_.below(columns.size())]);
  }

  // A run of layers of the vertex's tile and of bands beside it, of another tile in exchange, or of
  // all tiles.
  void move_in_tiles(std::int32_t v, std::int32_t to) {
    const auto from = division_.part(v);
    const auto types = static_cast<std::int32_t>(model_.first_types());
    const auto tiles = static_cast<std::int32_t>(model_.slices * model_.bands);
    const auto place = place_of_type_[division_.vertex(v).type];
    const auto tile = place / types, own = place % types;
    // All tiles at once are as many times the work, and no better for it.
    const bool in_all = random_.below(4) == 0 && random_.below(tiles) < 2;
    std::int32_t first = own, last = first + 1;
    if (random_.below(4) > 0) {
      while (first > 0 && random_.below(4) > 0 && lies_in(tile, first - 1, from)) --first;
      while (last < types && random_.below(4) > 0 && lies_in(tile, last, from)) ++last;
    }
    if (in_all) {
      for (std::int32_t other = 0; other < tiles; ++other) move_run(other, first, last, from, to);
      return;
    }
    const auto bands = static_cast<std::int32_t>(model_.bands);
    std::int32_t top = tile, bottom = tile + 1;
    if (bands > 1) {
      while (top % bands > 0 && random_.below(2) > 0 && lies_in(top - 1, own, from)) --top;
      while (bottom % bands > 0 && random_.below(2) > 0 && lies_in(bottom, own, from)) ++bottom;
    }
    for (auto band = top; band < bottom; ++band) move_run(band, first, last, from, to);
    if (random_.below(3) > 0) return;
    const auto begin = static_cast<std::int32_t>(random_.below(tiles));
    for (std::int32_t step = 0; step < tiles; ++step) {
      const auto other = (begin + step) % tiles;
      if ((top <= other && other < bottom) || !lies_in(other, own, to)) continue;
      move_run(other, first, last, to, from);
      return;
    }
  }

  void move_run(std::int32_t tile, std::int32_t first, std::int32_t last, std::int32_t from,
                std::int32_t to) {
    for (auto own = first; own < last; ++own) {
      const auto type = model_.tiles[tile * model_.first_types() + own];
      if (type >= 0) move_share(type, from, to);
    }
  }

  // Whether a vertex of a type of the first band lies in a part, in a tile.
  bool lies_in(std::int32_t tile, std::int32_t own, std::int32_t part) const {
    const auto type = model_.tiles[tile * model_.first_types() + own];
    if (type < 0) return false;
    const auto column_class = model_.type_classes[2 * type + 1];
    for (const auto row : division_.active(model_.type_classes[2 * type])) {
      if (column_class < 0) {
        if (division_.part(division_.vertex_at(2 * type, row, -1)) == part) return true;
        continue;
      }
      for (const auto column : division_.active(column_class)) {
        if (division_.part(division_.vertex_at(2 * type, row, column)) == part) return true;
      }
    }
    return false;
  }

  // A type's share and those of some that it exchanges maps with.
  void move_with_neighbours(std::int32_t v, std::int32_t to) {
    const auto from = division_.part(v);
    auto type = division_.vertex(v).type;
    for (int size = 0; size < kMostNeighbours; ++size) {
      move_share(type, from, to);
      if (random_.below(4) == 0) return;
      const auto& adjacent = division_.adjacent(type);
      if (adjacent.empty()) return;
      type = adjacent[random_.below(adjacent.size())];
    }
  }

  // Where a share has moved, adjacent vertices of little weight move with it if that saves.
  void follow() {
    for (std::size_t at = 0; at < shares_.size() && at < kMostNeighbours; ++at) {
      const Share share = shares_[at];
      for (const auto type : division_.adjacent(share.type)) {
        if (model_.type_weights[type] > 0 || model_.group(type) >= 0) continue;
        if (!model_.may_lie(type, share.to, k_)) continue;
        for_each_in(type, share.from, [&](std::int32_t v) {
          const auto cost = division_.smooth_cost();
          division_.move(v, share.to);
          if (division_.smooth_cost() < cost) {
            touch(v);
          } else {
            division_.move(v, share.from);
          }
        });
      }
    }
  }

  // Visits the vertices of a type that lie in a part.
  template <typename Visit>
  void for_each_in(std::int32_t type, std::int32_t part, Visit visit) {
    const auto column_class = model_.type_classes[2 * type + 1];
    for (const auto row : division_.active(model_.type_classes[2 * type])) {
      if (column_class < 0) {
        const auto v = division_.vertex_at(2 * type, row, -1);
        if (division_.part(v) == part) visit(v);
        continue;
      }
      for (const auto column : division_.active(column_class)) {
        const auto v = division_.vertex_at(2 * type, row, column);
        if (division_.part(v) == part) visit(v);
      }
    }
  }

  void move_share(std::int32_t type, std::int32_t from, std::int32_t to) {
    for_each_in(type, from, [&](std::int32_t v) { move(v, to); });
    shares_.push_back({type, from, to});
  }

  // A vertex to a part where it may lie, with all others of its group.
  void move(std::int32_t v, std::int32_t to) {
    if (!may_lie(v, to) || division_.part(v) == to) return;
    const auto group = model_.group(division_.vertex(v).type);
    if (group < 0) {
      division_.move(v, to);
      touch(v);
      return;
    }
    const auto from = division_.part(v);
    for (const auto type : group_types_[group]) {
      for_each_in(type, from, [&](std::int32_t other) {
        division_.move(other, to);
        touch(other);
      });
    }
  }

  void touch(std::int32_t v) {
    touched_.push_back(division_.vertex(v).row);
    if (division_.vertex(v).column >= 0) touched_.push_back(division_.vertex(v).column);
  }

  // Some of the units of one of the vertex's rows; with what else of the row lies in its part.
  void move_units(std::int32_t v, std::int32_t to, bool together) {
    const auto at = division_.vertex(v);
    const auto from = division_.part(v);
    const auto axis = at.column >= 0 ? static_cast<std::int32_t>(random_.below(2)) : 0;
    const auto row = axis == 0 ? at.row : at.column;
    std::int64_t weight = 0;
    if (together) {
      division_.for_each_vertex(row, [&](std::int32_t other) {
        if (division_.part(other) == from) weight += division_.weight(other);
      });
    } else {
      weight = division_.weight(v);
    }
    const auto size = division_.size(row);
    const auto n = amount(size, weight / size, from, to);
    auto taken = division_.split(row, n);
    if (taken < 0) taken = row;
    touched_.push_back(row);
    if (!together) {
      const auto other = axis == 0 ? at.column : at.row;
      move(division_.vertex_at(2 * at.type + axis, taken, other), to);
      return;
    }
    chosen_.clear();
    division_.for_each_vertex(taken, [&](std::int32_t other) {
      if (division_.part(other) == from) chosen_.push_back(other);
    });
    for (const auto other : chosen_) move(other, to);
  }

  // How many of a row's units to move: all, what fits, what relieves, or any number.
  std::int64_t amount(std::int64_t size, std::int64_t each, std::int32_t from, std::int32_t to) {
    if (each == 0 || size == 1) return size;
    // A row more has vertices in all tiles.
    if (model_.has_tiles() && random_.below(4) > 0) return size;
    std::int64_t n = size;
    switch (random_.below(4)) {
      case 0: break;
      case 1: n = division_.room(to) / each; break;
      case 2:
        n = division_.room(from) < 0 ? 1 + (-division_.room(from) - 1) / each
                                     : division_.room(to) / each;
        break;
      default: n = 1 + random_.below(size);
    }
    return n < 1 || n > size ? size : n;
  }

  // Units go from one row of a class to another, whose vertices lie elsewhere.
  bool shift_units(std::int32_t v) {
    const auto at = division_.vertex(v);
    const auto row = at.column >= 0 && random_.below(2) == 0 ? at.column : at.row;
    const auto& rows = division_.active(division_.class_of(row));
    if (rows.size() < 2 || division_.size(row) < 2) return false;
    const auto other = rows[random_.below(rows.size())];
    if (other == row) return false;
    const auto most = division_.size(row) - 1;
    auto n = 1 + random_.below(most);
    if (random_.below(2) == 0) n = 1 + random_.below(std::max<std::int64_t>(1, most / 8));
    division_.shift(row, other, n);
    return true;
  }

  // Where a part has become too full, others of its units leave it.
  void make_room(std::int32_t from, std::int32_t to) {
    for (int exchange = 0; exchange < kMostExchanges; ++exchange) {
      if (division_.room(to) >= 0) return;
      const auto& members = division_.members(to);
      const auto v = members[random_.below(members.size())];
      auto next = from;
      if (random_.below(2) == 0) next = some_part(v);
      if (next == to) return;
      move_units(v, next, random_.below(4) == 0);
      from = to;
      to = next;
    }
  }

  const SymmetricModel& model_;
  const std::int32_t k_;
  const AnnealingOptions options_;
  const std::function<bool(std::int64_t)>& go_on_;
  Division division_;
  Random random_;
  Price work_{division_.work()}, memory_{division_.memory()};
  double scale_, temperature_ = 0, progress_ = 0;
  Rank best_rank_;
  Rows best_;
  std::vector<std::int32_t> place_of_type_;  // among the tiles
  std::vector<std::vector<std::int32_t>> group_types_;
  Clusters clusters_;
  std::vector<std::int32_t> touched_, chosen_;
  std::vector<Share> shares_;
};

}  // namespace

AnnealingResult anneal(const SymmetricModel& model, const Goal& goal, const Rows& start,
                       const AnnealingOptions& options, const std::function<bool(std::int64_t)>& go_on) {
  return Annealing(model, goal, start, options, go_on).run();
}

}  // namespace hgpart
