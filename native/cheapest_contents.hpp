// The cheapest contents of a part at given prices: a dynamic program over the items.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "contents.hpp"

namespace hgpart {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;
// Nets that a label can tell apart at an item, and those of the model that may begin, end or go on
// there: no item is in more than two groups, which are nets, too.
constexpr int kMostOpen = 11, kMostAtItem = kMostOpen - 2;
constexpr int kMostFollowed = 8;  // of them, those that may go on behind the item
constexpr int kMostMixtures = 500, kMostClasses = 1000;

struct Group {  // items first to last together lie in so many parts at least
  std::int64_t first, last;
  double parts;
};

struct Contents {
  std::vector<double> held;  // share of each item
  std::vector<bool> touched;
  double cost = 0.0;
  bool operator==(const Contents& other) const { return held == other.held; }
};

struct Net {
  double cost;
  std::int64_t first, last;  // items that touch it
  bool is_group;
};

struct Touch {
  std::int32_t net;
  bool dense;
};

// What decides how many labels there are: the share t and, for the weight, what it is at least;
// mixtures of two kinds of filters of a class; buckets of work.
struct Grid {
  double share, least_share;
  double step;  // of work, between two mixtures of a class
  int buckets;
  double slack;  // of work above the capacities
};

// Contents of so much work at least, which cost so much less prices at least.
struct Offer {
  double work, cost;
};

// One step of a label; index of the label before it and of what the item does.
struct Step {
  std::int32_t before, choice;
};

class Cheapest {
 public:
  Cheapest(const ContentsModel& model, const std::vector<Group>& groups);

  // Sets the prices of items and groups.
  void price(const std::vector<double>& items, const std::vector<double>& groups);

  double operations() const { return operations_; }

  // Gives up behind so many operations.
  void limit(double operations) { limit_ = operations; }

  // The least cost less prices of contents of ever more work, up to a capacity and the slack; none
  // if it gives up.
  std::vector<Offer> offers(const Grid& grid, double capacity, Contents* contents);

 private:
  struct Choice {
    int first, second;  // levels of the two kinds of filters
    int mixture;        // 0: all filters alike
    bool trace = false; // so few of the filters that they count for nothing but what they touch
  };

  double room(double capacity) const { return (capacity + grid_.slack) * (1 + kRounding); }

  void begin(const Grid& grid, double capacity);

  // Number of mixtures of two kinds of filters of a class: their shares are multiples of it.
  double mixing(std::int32_t number) const;

  int mixtures(std::int32_t number) const;

  double share_of(std::int32_t number, int mixture) const { return mixture * mixing(number); }

  // Does what the item can, with each label; returns whether there are neither too many labels nor,
  // which `check` and `add_groups` rule out, too many nets.
  bool extend(std::int64_t item);

  double key_share(std::uint64_t key) const;

  void apply(std::int64_t item, std::size_t state, std::uint64_t key, std::size_t at,
             const Choice& choice, int mixture, double share, std::uint64_t closing,
             const std::vector<std::int32_t>& ended);

  std::size_t place(std::uint64_t key);

  void begin_step();

  // Keeps what no lighter bucket of the same state has for less, and states that have any.
  void end_step(std::int64_t item);

  // What a label holds, with the share of the samples as large as there is room for.
  Contents contents_of(std::int64_t label) const;

  Contents evaluated(const std::vector<Choice>& taken, double share,
                     const std::array<double, 3>& levels) const;

  const ContentsModel* model_;
  bool has_groups_;
  std::vector<Net> nets_;
  std::vector<std::vector<Touch>> touches_;
  std::vector<std::int64_t> class_ends_;
  std::vector<double> class_work_;
  std::vector<double> prices_;
  double operations_ = 0.0, limit_ = kInfinity;
  bool keeps_steps_ = false;

  Grid grid_{};
  double capacity_ = 0.0;
  std::array<double, 3> levels_{}, least_levels_{};
  std::vector<int> slots_;
  std::array<bool, kMostOpen> used_{};
  std::vector<std::uint64_t> states_, next_states_;
  std::vector<std::size_t> labels_;  // CSR by state
  std::vector<double> costs_, weights_, next_costs_, next_weights_;
  std::vector<Step> next_steps_;
  std::vector<std::vector<Step>> steps_;
  std::vector<std::vector<Choice>> choices_;
  std::unordered_map<std::uint64_t, std::size_t> index_;
};

}  // namespace hgpart
