#include "contents.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "array_checks.hpp"
#include "covering_program.hpp"

// Why no contents cost less, at given prices, than the best of those that are tried:
//
// Let y be the share of the samples of each single filter that a part has. Which filters it has any
// samples of is left fixed. A net of a filter is touched in a share of the samples that is at least
// the largest y of its filters, and one that a whole layer reads at least the largest y of that
// layer; what parameters cost is fixed. So the cost less prices is linear in y between the planes
// y = y', and the work is linear. The least within a capacity lies at a vertex: each y is 0 or 1,
// or the same t. Filters of a class with the same y are alike; how many of a class are of which
// kind is then a linear program too, given what is read of each layer, so that but one class has
// two kinds of filters, in a share f and 1 - f. At its ends a layer can be left with none of its
// filters but with all that it reads: it costs less without, but for the prices of groups of which
// it then would be no more. So a trace of a layer is tried, too.
//
// Given all but f and t, the cost less prices is linear in f and in t. It is thus no less than at
// one of the corners of a cell of f x t, and no contents of the cell have less work than the corner
// has with t at its lower end, but for what a step of f makes. `Bounding` covers all f and t by
// such cells. Work is sorted into buckets, in which labels are mixed: least cost, least work.
//
// The prices are those of the linear program over the contents that were found so far (column
// generation: Gilmore and Gomory, 1961; smoothed as by Wentges, 1997).

namespace hgpart {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;

// A label's state. Each net that is open has four bits: the level of what is paid for the filters
// of the first kind and of the second. Levels are 0, t (1) and all (2).
constexpr int kBitsOfNet = 4, kMostOpen = 11, kMostFollowed = 8;
// Nets that begin, end or go on at an item have a slot each while its labels are made; two are of
// groups, as no item is in three of them.
constexpr int kMostAtItem = kMostOpen - 2;
constexpr int kMixtureAt = 44, kClassAt = 53;
constexpr std::uint64_t kMixture = std::uint64_t{511} << kMixtureAt;
constexpr std::uint64_t kClass = std::uint64_t{1023} << kClassAt;
constexpr std::uint64_t kMixed = std::uint64_t{1} << 63;
constexpr int kMostMixtures = 500, kMostClasses = 1000;
// At once, and of all items together: some hundred MB.
constexpr std::size_t kMostLabels = 3'000'000, kMostSteps = 20'000'000;
constexpr double kOfAChoice = 50.0;  // operations beside those of its labels

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
  std::int32_t before;
  std::int16_t choice;
};

class Cheapest {
 public:
  Cheapest(const ContentsModel& model, const std::vector<Group>& groups)
      : model_(&model), has_groups_(!groups.empty()), touches_(static_cast<std::size_t>(model.items())) {
    for (const double cost : model.costs) nets_.push_back({cost, -1, -1, false});
    for (std::int64_t item = 0; item < model.items(); ++item) {
      for (std::int64_t at = model.pointers[item]; at < model.pointers[item + 1]; ++at) {
        touches_[item].push_back({model.nets[at], model.dense[at]});
      }
    }
    for (const auto& group : groups) {
      for (auto item = group.first; item <= group.last; ++item) {
        touches_[item].push_back({static_cast<std::int32_t>(nets_.size()), true});
      }
      nets_.push_back({0.0, -1, -1, true});
    }
    const auto classes =
        1 + *std::max_element(model.classes.begin(), model.classes.end());
    class_ends_.assign(static_cast<std::size_t>(classes), -1);
    class_work_.assign(static_cast<std::size_t>(classes), 0.0);
    for (std::int64_t item = 0; item < model.items(); ++item) {
      class_work_[model.classes[item]] += model.work[item];
      for (const auto& touch : touches_[item]) {
        auto& net = nets_[touch.net];
        if (net.first < 0) net.first = item;
        net.last = item;
      }
    }
    for (std::int64_t item = 0; item < model.items(); ++item) {
      auto& end = class_ends_[model.classes[item]];
      end = std::max(end, item);
      for (const auto& touch : touches_[item]) {
        if (!touch.dense) end = std::max(end, nets_[touch.net].last);
      }
    }
  }

  // Sets the prices of items and groups.
  void price(const std::vector<double>& items, const std::vector<double>& groups) {
    prices_ = items;
    for (std::size_t at = 0; at < groups.size(); ++at) {
      nets_[static_cast<std::size_t>(model_->costs.size) + at].cost = -groups[at];
    }
  }

  double operations() const { return operations_; }

  // Gives up behind so many operations.
  void limit(double operations) { limit_ = operations; }

  // The least cost less prices of contents of ever more work, up to a capacity and the slack; none
  // if it gives up.
  std::vector<Offer> offers(const Grid& grid, double capacity, Contents* contents) {
    begin(grid, capacity);
    keeps_steps_ = contents != nullptr;
    std::vector<Offer> offers;
    std::size_t kept = 0;
    for (std::int64_t item = 0; item < model_->items(); ++item) {
      if (!extend(item)) return offers;
      if (kept > kMostSteps) return offers;
      kept += steps_[static_cast<std::size_t>(item)].size();
    }
    std::int64_t best = -1;
    for (std::size_t at = 0; at < costs_.size(); ++at) {
      if (best < 0 || costs_[at] < costs_[static_cast<std::size_t>(best)]) {
        best = static_cast<std::int64_t>(at);
      }
      offers.push_back({weights_[at], costs_[at]});
    }
    if (contents != nullptr) *contents = contents_of(best);
    return offers;
  }

 private:
  struct Choice {
    int first, second;  // levels of the two kinds of filters
    int mixture;        // 0: all filters alike
    bool trace = false; // so few of the filters that they count for nothing but what they touch
  };

  double room(double capacity) const { return (capacity + grid_.slack) * (1 + kRounding); }

  void begin(const Grid& grid, double capacity) {
    grid_ = grid;
    capacity_ = room(capacity);
    levels_ = {0.0, grid.share, 1.0};
    least_levels_ = {0.0, grid.least_share, 1.0};
    slots_.assign(nets_.size(), -1);
    used_.fill(false);
    states_ = {0};
    labels_ = {0, 1};
    costs_ = {0.0};
    weights_ = {0.0};
    steps_.resize(static_cast<std::size_t>(model_->items()));
    choices_.resize(static_cast<std::size_t>(model_->items()));
  }

  // Number of mixtures of two kinds of filters of a class: their shares are multiples of it.
  double mixing(std::int32_t number) const {
    return grid_.step / std::max(class_work_[number], 1e-12);
  }

  int mixtures(std::int32_t number) const {
    const double step = mixing(number);
    if (number >= kMostClasses || step >= 1.0) return 0;
    return std::min(kMostMixtures, static_cast<int>(std::ceil(1.0 / step)) - 1);
  }

  double share_of(std::int32_t number, int mixture) const { return mixture * mixing(number); }

  // Does what the item can, with each label; returns whether there are not too many.
  bool extend(std::int64_t item) {
    auto& touches = touches_[item];
    const auto number = model_->classes[item];
    std::uint64_t closing = 0;
    for (const auto& touch : touches) {
      const auto& net = nets_[touch.net];
      if (net.first == item && net.last > item) {
        const auto free = std::find(used_.begin(), used_.end(), false);
        if (free == used_.end()) fail("nets at item", item, kMostOpen + 1, "at most 11");
        slots_[touch.net] = static_cast<int>(free - used_.begin());
        *free = true;
      }
      if (net.last == item && net.first < item) {
        closing |= std::uint64_t{15} << (kBitsOfNet * slots_[touch.net]);
      }
    }
    std::vector<std::int32_t> ended;
    for (std::size_t at = 0; at < class_ends_.size(); ++at) {
      if (class_ends_[at] == item) ended.push_back(static_cast<std::int32_t>(at));
    }
    begin_step();
    auto& choices = choices_[item];
    choices.clear();
    const int most_level = 2;
    const int least_level = model_->sliced ? 1 : 2;
    std::vector<int> levels{0};
    for (int level = least_level; level <= most_level; ++level) levels.push_back(level);
    for (const int level : levels) choices.push_back({level, level, 0});
    if (has_groups_) choices.push_back({0, 0, 0, true});
    const std::size_t plain = choices.size();
    const int count = mixtures(number);
    std::vector<std::size_t> of_mixture(static_cast<std::size_t>(count) + 2, plain);
    for (int mixture = 1; mixture <= count; ++mixture) {
      of_mixture[mixture] = choices.size();
      for (const int first : levels) {
        for (const int second : levels) {
          if (first != second) choices.push_back({first, second, mixture});
        }
      }
    }
    of_mixture[static_cast<std::size_t>(count) + 1] = choices.size();
    const std::uint64_t own_class = static_cast<std::uint64_t>(number) + 1;
    for (std::size_t state = 0; state < states_.size(); ++state) {
      if (next_costs_.size() > kMostLabels || operations_ > limit_) return false;
      const auto key = states_[state];
      const auto mixture = static_cast<int>((key & kMixture) >> kMixtureAt);
      const bool own = mixture > 0 && (key & kClass) >> kClassAt == own_class;
      for (std::size_t at = 0; at < plain; ++at) {
        apply(item, state, key, at, choices[at], mixture, key_share(key), closing, ended);
      }
      if (own) {
        for (std::size_t at = of_mixture[mixture]; at < of_mixture[mixture + 1]; ++at) {
          apply(item, state, key, at, choices[at], mixture, key_share(key), closing, ended);
        }
      } else if (mixture == 0 && (key & kMixed) == 0) {
        for (std::size_t at = plain; at < choices.size(); ++at) {
          const auto& choice = choices[at];
          if (choice.first < choice.second) continue;  // the same with its kinds exchanged
          const auto begun = key | (static_cast<std::uint64_t>(choice.mixture) << kMixtureAt) |
                             (own_class << kClassAt) | kMixed;
          apply(item, state, begun, at, choice, choice.mixture,
                share_of(number, choice.mixture), closing, ended);
        }
      }
    }
    for (const auto& touch : touches) {
      const auto& net = nets_[touch.net];
      if (net.last == item && net.first < item) used_[slots_[touch.net]] = false;
    }
    end_step(item);
    return true;
  }

  double key_share(std::uint64_t key) const {
    const auto mixture = static_cast<int>((key & kMixture) >> kMixtureAt);
    if (mixture == 0) return 1.0;
    return share_of(static_cast<std::int32_t>((key & kClass) >> kClassAt) - 1, mixture);
  }

  void apply(std::int64_t item, std::size_t state, std::uint64_t key, std::size_t at,
             const Choice& choice, int mixture, double share, std::uint64_t closing,
             const std::vector<std::int32_t>& ended) {
    const double first = mixture > 0 ? share : 1.0, second = 1.0 - first;
    const double held = first * levels_[choice.first] + second * levels_[choice.second];
    const double weight = model_->work[item] * (first * least_levels_[choice.first] +
                                               second * least_levels_[choice.second]);
    if (weight > capacity_) return;
    double cost = model_->parameters[item] *
                      (first * (choice.first > 0) + second * (choice.second > 0)) -
                  prices_[item] * held;
    const int most = choice.trace ? 2 : std::max(choice.first, choice.second);
    for (const auto& touch : touches_[item]) {
      const auto& net = nets_[touch.net];
      int own_first = touch.dense ? most : choice.first;
      int own_second = touch.dense ? most : choice.second;
      if (net.is_group && most > 0) own_first = own_second = 2;
      if (net.first == net.last) {
        cost += net.cost * (first * levels_[own_first] + second * levels_[own_second]);
        continue;
      }
      const int shift = kBitsOfNet * slots_[touch.net];
      const int paid_first = static_cast<int>(key >> shift) & 3;
      const int paid_second = static_cast<int>(key >> (shift + 2)) & 3;
      own_first = std::max(own_first, paid_first);
      own_second = std::max(own_second, paid_second);
      cost += net.cost * (first * (levels_[own_first] - levels_[paid_first]) +
                          second * (levels_[own_second] - levels_[paid_second]));
      key &= ~(std::uint64_t{15} << shift);
      key |= (static_cast<std::uint64_t>(own_first) | (static_cast<std::uint64_t>(own_second) << 2))
             << shift;
    }
    key &= ~closing;
    for (const auto number : ended) {
      if ((key & kClass) >> kClassAt == static_cast<std::uint64_t>(number) + 1) {
        key &= ~(kClass | kMixture);
      }
    }
    const auto target = place(key);
    const auto buckets = static_cast<std::size_t>(grid_.buckets);
    const double buckets_of_work = grid_.buckets / capacity_;
    for (std::size_t label = labels_[state]; label < labels_[state + 1]; ++label) {
      const double total = weights_[label] + weight;
      if (total > capacity_) break;
      const auto bucket = std::min(buckets - 1, static_cast<std::size_t>(total * buckets_of_work));
      const auto to = target * buckets + bucket;
      const double value = costs_[label] + cost;
      if (value < next_costs_[to]) {
        next_costs_[to] = value;
        next_steps_[to] = {static_cast<std::int32_t>(label), static_cast<std::int16_t>(at)};
      }
      next_weights_[to] = std::min(next_weights_[to], total);
    }
    operations_ += static_cast<double>(labels_[state + 1] - labels_[state]) + kOfAChoice;
  }

  std::size_t place(std::uint64_t key) {
    const auto [found, is_new] = index_.try_emplace(key, next_states_.size());
    if (is_new) {
      next_states_.push_back(key);
      const auto size = next_states_.size() * static_cast<std::size_t>(grid_.buckets);
      next_costs_.resize(size, kInfinity);
      next_weights_.resize(size, kInfinity);
      next_steps_.resize(size, {-1, -1});
    }
    return found->second;
  }

  void begin_step() {
    index_.clear();
    next_states_.clear();
    next_costs_.clear();
    next_weights_.clear();
    next_steps_.clear();
  }

  // Keeps what no lighter bucket of the same state has for less, and states that have any.
  void end_step(std::int64_t item) {
    const auto buckets = static_cast<std::size_t>(grid_.buckets);
    operations_ += static_cast<double>(next_costs_.size());
    states_.clear();
    labels_ = {0};
    costs_.clear();
    weights_.clear();
    auto& steps = steps_[static_cast<std::size_t>(item)];
    steps.clear();
    for (std::size_t state = 0; state < next_states_.size(); ++state) {
      double best = kInfinity;
      for (auto at = state * buckets; at < (state + 1) * buckets; ++at) {
        if (next_costs_[at] >= best) continue;
        best = next_costs_[at];
        costs_.push_back(best);
        weights_.push_back(next_weights_[at]);
        if (keeps_steps_) steps.push_back(next_steps_[at]);
      }
      if (labels_.back() == costs_.size()) continue;
      states_.push_back(next_states_[state]);
      labels_.push_back(costs_.size());
    }
  }

  // What a label holds, with the share of the samples as large as there is room for.
  Contents contents_of(std::int64_t label) const {
    const auto items = static_cast<std::size_t>(model_->items());
    std::vector<Choice> taken(items);
    double share = 1.0;  // of the first kind of filters, where there are two
    for (auto item = items; item-- > 0;) {
      const auto& step = steps_[item][static_cast<std::size_t>(label)];
      taken[item] = choices_[item][static_cast<std::size_t>(step.choice)];
      if (taken[item].mixture > 0) {
        share = share_of(model_->classes[static_cast<std::int64_t>(item)], taken[item].mixture);
      }
      label = step.before;
    }
    double whole = 0.0, sampled = 0.0;  // work of all samples, and of those of which it has a share
    for (std::size_t item = 0; item < items; ++item) {
      const double first = taken[item].mixture > 0 ? share : 1.0;
      const double work = model_->work[static_cast<std::int64_t>(item)];
      whole += work * (first * (taken[item].first == 2) + (1 - first) * (taken[item].second == 2));
      sampled +=
          work * (first * (taken[item].first == 1) + (1 - first) * (taken[item].second == 1));
    }
    auto levels = levels_;
    if (sampled > 0.0) levels[1] = std::clamp((capacity_ - whole) / sampled, 0.0, levels_[1]);
    return evaluated(taken, share, levels);
  }

  Contents evaluated(const std::vector<Choice>& taken, double share,
                     const std::array<double, 3>& levels) const {
    Contents contents;
    std::vector<std::array<int, 2>> paid(nets_.size(), {0, 0});
    for (std::size_t item = 0; item < taken.size(); ++item) {
      const auto at = static_cast<std::int64_t>(item);
      const auto& choice = taken[item];
      const double first = choice.mixture > 0 ? share : 1.0;
      contents.held.push_back(first * levels[choice.first] + (1 - first) * levels[choice.second]);
      contents.touched.push_back(choice.trace || choice.first > 0 || choice.second > 0);
      contents.cost += model_->parameters[at] *
                       (first * (choice.first > 0) + (1 - first) * (choice.second > 0));
      const int most = choice.trace ? 2 : std::max(choice.first, choice.second);
      for (const auto& touch : touches_[item]) {
        auto& own = paid[touch.net];
        own[0] = std::max(own[0], touch.dense ? most : choice.first);
        own[1] = std::max(own[1], touch.dense ? most : choice.second);
      }
    }
    for (std::size_t net = 0; net < nets_.size(); ++net) {
      if (nets_[net].is_group) continue;
      contents.cost += nets_[net].cost *
                       (share * levels[paid[net][0]] + (1 - share) * levels[paid[net][1]]);
    }
    return contents;
  }

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

// The least of offers within a capacity. One with more work may be mixed with a lighter one, whose
// work is less by a step at most: so much of the mixture it can be. (Nothing can be said of how
// heavy the lighter one is among the offers, as there may be a better one in its place.)
double least_within(const std::vector<Offer>& offers, double capacity, double step) {
  capacity *= 1 + kRounding;
  double alone = kInfinity;
  for (const auto& offer : offers) {
    if (offer.work <= capacity) alone = std::min(alone, offer.cost);
  }
  double least = alone;
  for (const auto& heavy : offers) {
    if (heavy.work <= capacity || heavy.work > capacity + step) continue;
    const double part = std::min(1.0, (capacity + step - heavy.work) / step);
    least = std::min(least, alone + part * (heavy.cost - alone));
  }
  return least;
}

double offers_least(const std::vector<Offer>& offers) {
  double least = kInfinity;
  for (const auto& offer : offers) least = std::min(least, offer.cost);
  return least;
}

// ------------------------------------------------------------------ prices

constexpr double kFinestShare = 1.0 / 200;   // of the samples, in capacities: one cell is below it
constexpr std::array<double, 3> kSmallShares{0.04, 0.01, 0.0005};  // in capacities
constexpr int kMostRounds = 150;              // of better prices, at each fineness
constexpr double kPenalty = 10.0;            // of demands that are not met
constexpr double kWeightOfBest = 0.6;        // of the best prices so far, in the next ones
// Of the operations: until the end of each proof, and of what is until then, for prices.
constexpr std::array<double, 3> kLimits{0.75, 0.9, 1.0};
constexpr double kShareOfPrices = 0.7;
constexpr double kOver = 1.2;                // of a limit, where a search is ended for it
constexpr std::size_t kMostWorst = 6;        // cells of a proof, whose shares are priced then, too
constexpr std::size_t kMostGroups = 12, kGroupsAtOnce = 3, kFewShares = 4;
constexpr double kMissing = 0.02;            // of a part, that a group lacks
constexpr double kNarrow = 1.01, kNone = 1e-7;  // ratio, or end, of a cell that is not cut

// Mixtures of a class, by their distance as a share of a capacity; ratio of the shares of samples;
// buckets of work.
constexpr double kNoMixtures = 1e9;
struct Fineness {
  double step, ratio;
  int buckets;
  double close;  // ends where better prices can't raise the bound by more than this share
};
constexpr std::array<Fineness, 6> kPricings{{{kNoMixtures, 1.6, 32, 0.05},
                                             {0.3, 1.3, 60, 0.02},
                                             {0.1, 1.2, 100, 0.01},
                                             {0.05, 1.15, 150, 0.01},
                                             {0.02, 1.1, 400, 0.005},
                                             {0.008, 1.07, 1000, 0.005}}};
constexpr std::array<Fineness, 6> kProofs{{{0.2, 2.0, 80, 0.0},
                                           {0.1, 1.6, 150, 0.0},
                                           {0.05, 1.6, 300, 0.0},
                                           {0.025, 1.6, 600, 0.0},
                                           {0.012, 1.6, 1000, 0.0},
                                           {0.006, 1.6, 1500, 0.0}}};

class Bounding {
 public:
  Bounding(const ContentsModel& model, double most_operations,
           const std::function<bool(double)>& go_on)
      : model_(model), most_operations_(most_operations), go_on_(go_on),
        capacities_(model.capacities.begin(), model.capacities.end()), cheapest_(model, {}) {
    const auto classes = 1 + *std::max_element(model.classes.begin(), model.classes.end());
    std::vector<double> work(static_cast<std::size_t>(classes), 0.0);
    for (std::int64_t item = 0; item < model.items(); ++item) {
      work[model.classes[item]] += model.work[item];
    }
    largest_class_ = *std::max_element(work.begin(), work.end());
  }

  double bound() {
    best_prices_ = first_prices();
    price_limit_ = kShareOfPrices * kLimits.front() * most_operations_;
    for (const auto& fineness : kPricings) {
      if (!find_prices(fineness)) break;
    }
    double best = -kInfinity;
    for (const double limit : kLimits) {
      proof_limit_ = limit * most_operations_;
      best = std::max(best, proven());
      price_limit_ = (limit + kShareOfPrices * (1 - limit)) * most_operations_;
      if (limit == 1.0 || more_shares_.empty() || !find_prices(kPricings.back())) break;
    }
    return best;
  }

 private:
  double capacity() const { return capacities_.front(); }

  Grid grid(const Fineness& fineness, double share, double least_share, bool proves) const {
    const double step = std::max(fineness.step * capacity(), largest_class_ / kMostMixtures);
    return {share, least_share, step, fineness.buckets, proves ? step : 0.0};
  }

  bool goes_on() {
    return go_on_(std::min(1.0, operations() / most_operations_));
  }

  double operations() const { return spent_ + cheapest_.operations(); }

  // The least in each part of some offers.
  std::vector<double> in_parts(const std::vector<Offer>& offers, double step) const {
    std::vector<double> least;
    for (std::size_t part = 0; part < capacities_.size(); ++part) {
      const bool as_before = part > 0 && capacities_[part] == capacities_[part - 1];
      least.push_back(as_before ? least.back()
                                : least_within(offers, capacities_[part], step));
    }
    return least;
  }

  // Prices by which the items that touch a net share its cost in proportion to their work.
  std::vector<double> first_prices() const {
    const auto items = static_cast<std::size_t>(model_.items());
    std::vector<double> of_net(static_cast<std::size_t>(model_.costs.size), 0.0);
    std::vector<double> prices(items, 0.0);
    const auto work = [&](std::int64_t item) { return model_.work[item] + 1e-6; };
    for (std::int64_t item = 0; item < model_.items(); ++item) {
      for (auto at = model_.pointers[item]; at < model_.pointers[item + 1]; ++at) {
        of_net[model_.nets[at]] += work(item);
      }
    }
    for (std::int64_t item = 0; item < model_.items(); ++item) {
      prices[item] = model_.parameters[item];
      for (auto at = model_.pointers[item]; at < model_.pointers[item + 1]; ++at) {
        const auto net = model_.nets[at];
        prices[item] += model_.costs[net] * work(item) / of_net[net];
      }
    }
    return prices;
  }

  double demanded(const std::vector<double>& prices, const std::vector<double>& of_groups) const {
    double sum = std::accumulate(prices.begin(), prices.end(), 0.0);
    for (std::size_t at = 0; at < of_groups.size(); ++at) sum += of_groups[at] * groups_[at].parts;
    double once = std::accumulate(model_.costs.begin(), model_.costs.end(), 0.0);
    once += std::accumulate(model_.parameters.begin(), model_.parameters.end(), 0.0);
    return sum - once;
  }

  std::vector<double> column(const Contents& contents) const {
    std::vector<double> column = contents.held;
    for (const auto& group : groups_) {
      bool touched = false;
      for (auto item = group.first; item <= group.last; ++item) {
        touched = touched || contents.touched[static_cast<std::size_t>(item)];
      }
      column.push_back(touched);
    }
    return column;
  }

  CoveringProgram program() const {
    std::vector<double> demands(static_cast<std::size_t>(model_.items()), 1.0);
    for (const auto& group : groups_) demands.push_back(group.parts);
    CoveringProgram program(std::move(demands), static_cast<double>(capacities_.size()), kPenalty);
    for (const auto& contents : known_) program.add(column(contents), contents.cost);
    return program;
  }

  // Better prices, until they are near the best; returns whether there is time for more.
  bool find_prices(const Fineness& fineness) {
    auto prices = best_prices_;
    auto of_groups = best_of_groups_;
    best_ = -kInfinity;
    struct Share {
      double share, least;
    };
    std::vector<Share> shares{{1.0, 0.0}};
    for (double share = 1.0 / fineness.ratio; model_.sliced && share > capacity() / 8;
         share /= fineness.ratio) {
      shares.push_back({share, 0.0});
    }
    for (const double share : kSmallShares) {
      if (model_.sliced) shares.push_back({share * capacity(), 0.0});
    }
    for (const double share : more_shares_) shares.push_back({share, 0.0});
    auto covering = program();
    bool of_all = true;
    for (int round = 0; round < kMostRounds; ++round) {
      cheapest_.price(prices, of_groups);
      cheapest_.limit(kOver * price_limit_ - spent_);
      bool learned = false;
      std::vector<double> least(capacities_.size(), 0.0);
      std::stable_sort(shares.begin(), shares.end(),
                       [](const Share& a, const Share& b) { return a.least < b.least; });
      for (std::size_t number = 0; number < shares.size(); ++number) {
        if (!of_all && number >= kFewShares) break;
        if (!goes_on() || operations() > price_limit_) return false;
        auto& [share, own_least] = shares[number];
        Contents contents;
        const double lower = model_.sliced ? share / fineness.ratio : share;
        const auto offers =
            cheapest_.offers(grid(fineness, share, lower, false), capacity(), &contents);
        if (offers.empty()) return false;
        auto own = in_parts(offers, 0.0);
        const auto own_column = column(contents);
        own_least = contents.cost;
        for (std::size_t item = 0; item < prices.size(); ++item) {
          own_least -= prices[item] * contents.held[item];
        }
        for (std::size_t at = 0; at < groups_.size(); ++at) {
          own_least -= of_groups[at] * own_column[prices.size() + at];
        }
        for (auto& value : own) {
          if (value == offers_least(offers)) value = own_least;
        }
        for (std::size_t part = 0; part < least.size(); ++part) {
          least[part] = std::min(least[part], own[part]);
        }
        if (seen_.insert(contents.held).second) {
          covering.add(own_column, contents.cost);
          known_.push_back(std::move(contents));
          learned = true;
        }
      }
      const double total =
          demanded(prices, of_groups) + std::accumulate(least.begin(), least.end(), 0.0);
      const bool is_better = of_all && total > best_;
      if (is_better) {
        best_ = total;
        best_prices_ = prices;
        best_of_groups_ = of_groups;
      }
      const double before = covering.operations();
      const double reachable = covering.solve() - once();
      spent_ += covering.operations() - before;
      if (!std::isfinite(reachable)) return true;
      const bool was_of_all = of_all;
      of_all = !of_all || best_ == -kInfinity;
      if (was_of_all && (reachable - best_ <= fineness.close * std::abs(reachable) ||
                         (!learned && !is_better))) {
        if (!add_groups(covering.taken())) return true;
        covering = program();
        best_ = -kInfinity;
        best_of_groups_.resize(groups_.size(), 0.0);
        prices = best_prices_;
        of_groups = best_of_groups_;
        spent_ += cheapest_.operations();
        cheapest_ = Cheapest(model_, groups_);
        of_all = true;
        continue;
      }
      const auto& newest = covering.prices();
      for (std::size_t at = 0; at < prices.size(); ++at) {
        prices[at] = kWeightOfBest * best_prices_[at] + (1 - kWeightOfBest) * newest[at];
      }
      for (std::size_t at = 0; at < of_groups.size(); ++at) {
        of_groups[at] = kWeightOfBest * best_of_groups_[at] +
                        (1 - kWeightOfBest) * std::max(0.0, newest[prices.size() + at]);
      }
    }
    return true;
  }

  double once() const {
    return std::accumulate(model_.costs.begin(), model_.costs.end(), 0.0) +
           std::accumulate(model_.parameters.begin(), model_.parameters.end(), 0.0);
  }

  // Runs of items that more parts must touch than do; returns whether there are any.
  // With samples to share, the least part of them touches a group for nothing.
  bool add_groups(const std::vector<double>& taken) {
    if (model_.sliced) return false;
    struct Lacking {
      double missing;
      Group group;
    };
    std::vector<Lacking> lacking;
    std::vector<double> reach{0.0};
    for (const double capacity : capacities_) reach.push_back(reach.back() + capacity);
    for (std::int64_t first = 0; first < model_.items(); ++first) {
      double work = 0.0;
      std::vector<bool> touching(known_.size(), false);
      double parts = 0.0;
      for (auto last = first; last < model_.items(); ++last) {
        work += model_.work[last];
        for (std::size_t at = 0; at < known_.size(); ++at) {
          if (taken[at] > 0.0 && !touching[at] && known_[at].touched[last]) {
            touching[at] = true;
            parts += taken[at];
          }
        }
        std::size_t needed = 0;
        while (needed + 1 < reach.size() && reach[needed] * (1 + kRounding) < work) ++needed;
        if (static_cast<double>(needed) - parts > kMissing) {
          lacking.push_back({static_cast<double>(needed) - parts,
                             {first, last, static_cast<double>(needed)}});
        }
      }
    }
    std::stable_sort(lacking.begin(), lacking.end(), [](const Lacking& a, const Lacking& b) {
      return a.missing > b.missing;
    });
    const auto before = groups_.size();
    for (const auto& [missing, group] : lacking) {
      if (groups_.size() >= kMostGroups || groups_.size() >= before + kGroupsAtOnce) break;
      int overlaps = 0;
      bool known = false;
      for (const auto& other : groups_) {
        overlaps += group.first <= other.last && other.first <= group.last;
        known = known || (group.first == other.first && group.last == other.last);
      }
      if (!known && overlaps < 2) groups_.push_back(group);
    }
    return groups_.size() > before;
  }

  // Shares of the samples from low to high, and the least in each part for any of them.
  struct Cell {
    double low, high;
    std::vector<double> least;
    double sum;
  };

  Cell cell(const Fineness& fineness, double low, double high) {
    std::vector<Offer> offers{{0.0, 0.0}};
    double step = 0.0;
    for (const double share : {low, high}) {
      if (share <= 0.0 || (share == low && low == high && offers.size() > 1)) continue;
      const auto own_grid = grid(fineness, share, low, true);
      step = own_grid.slack;
      const auto own = cheapest_.offers(own_grid, capacity(), nullptr);
      if (own.empty()) return {low, high, {}, -kInfinity};
      offers.insert(offers.end(), own.begin(), own.end());
    }
    Cell cell{low, high, in_parts(offers, step), 0.0};
    cell.sum = std::accumulate(cell.least.begin(), cell.least.end(), 0.0);
    return cell;
  }

  // The shares for which least is proven are priced from then on, too.
  void keep_worst(std::vector<Cell> cells) {
    std::sort(cells.begin(), cells.end(),
              [](const Cell& a, const Cell& b) { return a.sum < b.sum; });
    for (std::size_t at = 0; at < std::min(kMostWorst, cells.size()); ++at) {
      const double share = cells[at].high;
      if (model_.sliced && std::find(more_shares_.begin(), more_shares_.end(), share) ==
                               more_shares_.end()) {
        more_shares_.push_back(share);
      }
    }
  }

  // The bound at the best prices: the least over all shares of the samples, cell by cell.
  double proven() {
    cheapest_.price(best_prices_, best_of_groups_);
    cheapest_.limit(kOver * most_operations_ - spent_);
    const double demanded_once = demanded(best_prices_, best_of_groups_);
    double best = -kInfinity;
    for (const auto& fineness : kProofs) {
      const double before = operations();
      const auto is_whole = [](const Cell& own) { return !own.least.empty(); };
      std::vector<Cell> cells;
      if (!model_.sliced) cells.push_back(cell(fineness, 1.0, 1.0));
      for (double high = 1.0; model_.sliced && high > 0.0;) {
        if (!goes_on()) return best;
        const double low = high > kFinestShare * capacity() ? high / fineness.ratio : 0.0;
        cells.push_back(cell(fineness, low, high));
        if (!is_whole(cells.back())) break;
        high = low;
      }
      if (!std::all_of(cells.begin(), cells.end(), is_whole)) break;
      const auto value = [&] {
        std::vector<double> least(capacities_.size(), 0.0);
        for (const auto& own : cells) {
          for (std::size_t part = 0; part < least.size(); ++part) {
            least[part] = std::min(least[part], own.least[part]);
          }
        }
        return demanded_once + std::accumulate(least.begin(), least.end(), 0.0);
      };
      best = std::max(best, value());
      while (model_.sliced && goes_on() && operations() < proof_limit_) {
        const auto worst =
            std::min_element(cells.begin(), cells.end(),
                             [](const Cell& a, const Cell& b) { return a.sum < b.sum; });
        const double low = worst->low, top = worst->high;
        if (low > 0.0 ? top / low < kNarrow : top < kNone) break;
        const double middle = low > 0.0 ? std::sqrt(low * top) : top / 3;
        const std::array<Cell, 2> halves{cell(fineness, low, middle), cell(fineness, middle, top)};
        if (!is_whole(halves[0]) || !is_whole(halves[1])) break;
        *worst = halves[0];
        cells.push_back(halves[1]);
        const double reached = value();
        best = std::max(best, reached);
      }
      keep_worst(cells);
      const double used = operations() - before;
      if (!goes_on() || operations() + 3 * used > proof_limit_) break;
    }
    return best - kRounding;
  }

  const ContentsModel& model_;
  const double most_operations_;
  const std::function<bool(double)>& go_on_;
  const std::vector<double> capacities_;
  double largest_class_ = 0.0, spent_ = 0.0, price_limit_ = 0.0, proof_limit_ = 0.0;
  std::vector<double> more_shares_;
  std::vector<Group> groups_;
  Cheapest cheapest_;
  std::vector<Contents> known_;
  std::set<std::vector<double>> seen_;
  double best_ = -kInfinity;
  std::vector<double> best_prices_, best_of_groups_;
};

void check_numbers(const char* name, Span<double> values, std::int64_t length, const char* per) {
  check_length(name, values.size, length, per);
  for (std::int64_t at = 0; at < values.size; ++at) {
    if (!(values[at] >= 0.0) || std::isinf(values[at])) {
      throw InvalidHypergraph(std::string(name) + "[" + std::to_string(at) + "] is " +
                              std::to_string(values[at]) + ", expected 0 or more");
    }
  }
}

void check(const ContentsModel& model) {
  const auto items = model.items();
  if (items == 0 || items > kMostClasses) fail("items", items, "1 to 1000");
  check_numbers("work", model.work, items, "one per item");
  check_numbers("parameters", model.parameters, items, "one per item");
  check_numbers("costs", model.costs, model.costs.size, "one per net");
  if (model.capacities.size == 0) fail("capacities", 0, "one for each part");
  check_numbers("capacities", model.capacities, model.capacities.size, "one per part");
  if (!std::is_sorted(model.capacities.begin(), model.capacities.end(), std::greater<>()) ||
      model.capacities[0] == 0.0) {
    throw InvalidHypergraph("capacities are not in descending order from above 0, as expected");
  }
  check_length("classes", model.classes.size, items, "one per item");
  check_below("classes", model.classes, kMostClasses);
  check_length("pointers", model.pointers.size, items + 1, "one per item and 1 more");
  check_pointers("pointers", model.pointers, nullptr, model.nets.size, "nets");
  check_length("dense", model.dense.size, model.nets.size, "one per net of an item");
  check_below("nets", model.nets, model.costs.size);
  std::vector<std::int64_t> first(static_cast<std::size_t>(model.costs.size), items);
  std::vector<std::int64_t> last(first.size(), -1);
  for (std::int64_t item = 0; item < items; ++item) {
    for (auto at = model.pointers[item]; at < model.pointers[item + 1]; ++at) {
      const auto net = static_cast<std::size_t>(model.nets[at]);
      first[net] = std::min(first[net], item);
      last[net] = item;
    }
  }
  for (std::int64_t item = 0; item < items; ++item) {
    int open = 0, there = 0;
    for (std::size_t net = 0; net < first.size(); ++net) {
      open += first[net] <= item && item < last[net];
      there += first[net] <= item && item <= last[net];
    }
    if (open > kMostFollowed) fail("nets behind item", item, open, "at most 8");
    if (there > kMostAtItem) fail("nets at item", item, there, "at most 9");
  }
}

}  // namespace

double contents_bound(const ContentsModel& model, double operations,
                      const std::function<bool(double)>& go_on) {
  check(model);
  return Bounding(model, operations, go_on).bound();
}

}  // namespace hgpart
