// Units of a class that lie alike are a row; the state of the search is rows and their parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "budget.hpp"
#include "goal.hpp"
#include "step_time.hpp"
#include "symmetric_model.hpp"
#include "traffic.hpp"

namespace hgpart {

// Rows of each class (units of each, summing to the class's), and the part of every vertex: for a
// type of one class a part for each row, for one of two a part for each pair, row by row.
struct Rows {
  std::vector<std::vector<std::int64_t>> sizes;   // of each class
  std::vector<std::vector<std::int32_t>> parts;   // of each type
};

// Rows that a class may be divided into: `most_rows`, but two more than it starts with.
inline std::int64_t most_rows_of(std::int64_t units, std::int64_t started, std::int64_t most_rows) {
  return std::min(units, std::max(most_rows, started + 2));
}

// Keeps the volume (or what else is the objective), the work and the memory of the parts up to date
// under small changes.
//
// A net costs c (lambda - 1). With supp(A) the parts that hold a vertex of its set A, and Q the
// parts of its other pins, lambda = |supp(A)| + |Q \ supp(A)|. Summed over the nets of one set,
//
//   volume(A) = C(A) (|supp(A)| - 1) + sum of q(A, p) over the parts p outside supp(A)
//
// where C(A) is the cost of all these nets and q(A, p) that of those with p in Q: a few additions
// keep it up to date, however many readers a layer has.
class Division {
 public:
  Division(const SymmetricModel& model, const Goal& goal, const Rows& start,
           std::int64_t most_rows);

  std::int64_t cost() const;    // by the objective
  double smooth_cost() const;   // falls where the cost is about to
  const Budget& work() const { return work_; }
  const Budget& memory() const { return memory_; }
  // Work and memory above the limits, as shares of all limits.
  double excess() const;
  std::int64_t room(std::int32_t part) const { return work_.room(part); }
  std::int32_t parts() const { return k_; }
  // Pairs of sides that must lie apart, and parts that have vertices of both.
  std::int64_t conflicts() const { return conflicts_; }
  Rows rows() const;
  // Vertices that changes have touched so far, each time: what the changes have taken.
  std::int64_t touches() const { return touches_; }

  struct Vertex {
    std::int32_t type, row, column;  // rows are numbered through all classes; column may be -1
  };
  const Vertex& vertex(std::int32_t v) const { return vertices_[v]; }
  std::int32_t part(std::int32_t v) const { return part_[v]; }
  const std::vector<std::int32_t>& members(std::int32_t part) const { return members_[part]; }
  std::int64_t size(std::int32_t row) const { return size_[row]; }
  std::int32_t class_of(std::int32_t row) const { return class_of_row_[row]; }
  const std::vector<std::int32_t>& active(std::int32_t row_class) const { return active_[row_class]; }
  std::int64_t weight(std::int32_t v) const {
    return model_.type_weights[vertices_[v].type] * units(vertices_[v]);
  }

  // Types with a vertex in each row of a class, twice the type plus the axis that the row is on.
  const std::vector<std::int32_t>& types_of(std::int32_t row_class) const {
    return class_types_[row_class];
  }
  // Types that share nets with one.
  const std::vector<std::int32_t>& adjacent(std::int32_t type) const { return adjacent_[type]; }
  // The vertex of a type (with axis, as above) in a row, and in a row of its other class.
  std::int32_t vertex_at(std::int32_t typed, std::int32_t row, std::int32_t other) const {
    const Place& place = places_[typed / 2];
    if (typed % 2 == 1) std::swap(row, other);
    return static_cast<std::int32_t>(place.first + std::int64_t{row} * place.columns +
                                     (place.crossed ? other : 0));
  }
  template <typename Visit>
  void for_each_vertex(std::int32_t row, Visit visit) const {
    for (const std::int32_t typed : class_types_[class_of_row_[row]]) {
      const std::int32_t type = typed / 2, axis = typed % 2;
      const std::int32_t other = model_.type_classes[2 * type + 1 - axis];
      if (other < 0) {
        visit(vertex_at(typed, row, -1));
        continue;
      }
      const bool twice = axis == 1 && other == class_of_row_[row];
      for (const std::int32_t crossing : active_[other]) {
        if (!(twice && crossing == row)) visit(vertex_at(typed, row, crossing));
      }
    }
  }

  // A part that some other pin of one of the vertex's nets lies in, chosen by `random`.
  std::int32_t neighbour(std::int32_t v, std::uint64_t random) const;

  // Changes. Since begin(), undo() takes all of them back.
  void begin() { log_.clear(); }
  void undo();
  void move(std::int32_t v, std::int32_t to);
  // Takes n units off a row: a row of their own, or the row itself where these are all its units.
  // -1 where there may be no more rows.
  std::int32_t split(std::int32_t row, std::int64_t n);
  // Moves n units (fewer than all) from a row to one of the same class.
  void shift(std::int32_t from, std::int32_t to, std::int64_t n);
  // Unites a row with one whose vertices all lie in the same parts, if there is one.
  void merge(std::int32_t row);

 private:
  struct Change {
    enum Kind { kMove, kResize, kActivate, kDeactivate } kind;
    std::int32_t at;
    std::int64_t before;
  };

  // A type's vertex (or net) in a row (and one of its second class): first + row columns (+ other).
  struct Place {
    std::int64_t first;
    std::int32_t columns;
    bool crossed;
  };

  std::int64_t index();  // returns the number of nets
  void index_neighbours();
  template <typename At>
  std::int64_t units(const At& at) const {
    return size_[at.row] * (at.column < 0 ? 1 : size_[at.column]);
  }
  void add_load(std::int32_t v, std::int64_t units);
  void attach(std::int32_t v);
  void detach(std::int32_t v);
  // A vertex of a side comes (1) to a part, or leaves it (-1).
  void count_side(std::int32_t side, std::int32_t part, std::int32_t change);
  void enter_set(std::int32_t set, std::int32_t part);
  void leave_set(std::int32_t set, std::int32_t part);
  // A net of a row, or of a row and another one that it crosses; else that one is -1.
  struct Net {
    std::int32_t type, row, column;
  };
  // The net that one of a type's nets (twice the net type plus the axis) is for a vertex.
  Net net_of(std::int32_t typed, const Vertex& at) const {
    const auto type = typed / 2;
    if (net_places_[type].crossed) return {type, at.row, at.column};
    return {type, typed % 2 == 0 ? at.row : at.column, -1};
  }
  std::size_t index_of(const Net& net) const {
    const Place& place = net_places_[net.type];
    return place.first + std::int64_t{net.row} * place.columns + (place.crossed ? net.column : 0);
  }
  std::int64_t cost_of(const Net& net) const { return units(net) * model_.net_costs[net.type]; }
  void enter_net(const Net& net, std::int32_t part);
  void leave_net(const Net& net, std::int32_t part);
  void change_cost(std::int32_t row, std::int64_t before, std::int64_t after);
  void change_cost(const Net& net, std::int64_t units);
  std::int32_t root(const Net& net) const {
    return part_[vertex_at(model_.net_pins[model_.net_pointers[net.type]], net.row, net.column)];
  }
  void root_moves(std::int32_t v, std::int32_t from, std::int32_t to);
  void relocate(std::int32_t v, std::int32_t to);
  void resize(std::int32_t row, std::int64_t units);
  void activate(std::int32_t row, std::int64_t units);
  void deactivate(std::int32_t row);

  const SymmetricModel& model_;
  const Objective objective_;
  const std::int32_t k_;
  const std::int32_t words_;  // of a mask of parts

  // What the model says, by class, type and set.
  std::vector<std::int32_t> first_row_;                     // of each class, and the end
  std::vector<std::int32_t> class_of_row_;
  std::vector<Place> places_;                               // of each type's vertices
  std::vector<std::vector<std::int32_t>> class_types_;      // 2 type + axis
  std::vector<std::vector<std::int32_t>> class_nets_;       // 2 net type + axis
  std::vector<std::vector<std::int32_t>> type_nets_;        // 2 net type + axis
  std::vector<std::vector<std::int32_t>> type_sets_;
  std::vector<std::vector<std::int32_t>> type_sides_;
  std::vector<std::vector<std::int32_t>> rooted_nets_;      // net types, of each type
  std::vector<std::vector<std::int32_t>> set_nets_;
  std::vector<std::vector<std::int32_t>> adjacent_;         // types, of each type
  std::vector<Place> net_places_;                           // of each net type's nets
  std::vector<Vertex> vertices_;

  // The state.
  std::vector<std::int64_t> size_;                          // of each row; 0 where it is free
  std::vector<std::vector<std::int32_t>> active_, free_;    // rows of each class
  std::vector<std::int32_t> place_in_active_;
  std::vector<std::int32_t> part_;
  std::vector<std::vector<std::int32_t>> members_;          // vertices of each part
  std::vector<std::int32_t> place_;                         // of each vertex among them
  std::vector<std::int32_t> pins_;                          // of each net in each part
  std::vector<std::uint64_t> mask_;                         // parts of each net
  std::vector<std::int32_t> support_;                       // vertices of each set in each part
  std::vector<std::int64_t> supports_;                      // |supp(A)|
  std::vector<std::int64_t> set_cost_;                      // C(A)
  std::vector<std::int64_t> part_cost_;                     // q(A, p)
  std::vector<std::uint64_t> hash_;                         // of each row's vertices and parts
  Budget work_, memory_;
  std::optional<Traffic> traffic_;                          // where volume and work don't do
  std::optional<StepTime> time_;                            // where that is the objective
  std::vector<std::int32_t> side_counts_;                   // vertices of each side in each part
  std::int64_t volume_ = 0, touches_ = 0, conflicts_ = 0;
  std::vector<Change> log_;
};

}  // namespace hgpart
