#include "cheapest_contents.hpp"

#include <algorithm>
#include <cmath>

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
// it then would be no more. So a trace of a layer is tried, too. A reading has a share y, but no
// work, and touches nets as a whole layer does.
//
// Given all but f and t, the cost less prices is linear in f and in t. It is thus no less than at
// one of the corners of a cell of f x t, and no contents of the cell have less work than the corner
// has with t at its lower end, but for what a step of f makes. `Bounding` covers all f and t by
// such cells. Work is sorted into buckets, in which labels are mixed: least cost, least work.

namespace hgpart {
namespace {

// A label's state. Each net that is open has four bits: the level of what is paid for the filters
// of the first kind and of the second. Levels are 0, t (1) and all (2).
constexpr int kBitsOfNet = 4;
constexpr int kMixtureAt = kBitsOfNet * kMostOpen, kClassAt = kMixtureAt + 9;
constexpr std::uint64_t kMixture = std::uint64_t{511} << kMixtureAt;
constexpr std::uint64_t kClass = std::uint64_t{1023} << kClassAt;
constexpr std::uint64_t kMixed = std::uint64_t{1} << 63;
static_assert(kClassAt + 10 == 63 && kMostMixtures <= 511 && kMostClasses <= 1023);
// At once, and of all items together: some hundred MB.
constexpr std::size_t kMostLabels = 3'000'000, kMostSteps = 20'000'000;
constexpr double kOfAChoice = 50.0;  // operations beside those of its labels

}  // namespace

Cheapest::Cheapest(const ContentsModel& model, const std::vector<Group>& groups)
    : model_(&model), has_groups_(!groups.empty()),
      touches_(static_cast<std::size_t>(model.items())) {
  for (const double cost : model.costs) nets_.push_back({cost, -1, -1, false});
  for (std::int64_t item = 0; item < model.items(); ++item) {
    for (std::int64_t at = model.pointers[item]; at < model.pointers[item + 1]; ++at) {
      touches_[item].push_back({model.nets[at], model.dense[at]});
    }
  }
  for (const auto& group : groups) {
    for (auto item = group.first; item <= group.last; ++item) {
      if (model.is_reading(item)) continue;
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

void Cheapest::price(const std::vector<double>& items, const std::vector<double>& groups) {
  prices_ = items;
  for (std::size_t at = 0; at < groups.size(); ++at) {
    nets_[static_cast<std::size_t>(model_->costs.size) + at].cost = -groups[at];
  }
}

std::vector<Offer> Cheapest::offers(const Grid& grid, double capacity, Contents* contents) {
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

void Cheapest::begin(const Grid& grid, double capacity) {
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

double Cheapest::mixing(std::int32_t number) const {
  return grid_.step / std::max(class_work_[number], 1e-12);
}

int Cheapest::mixtures(std::int32_t number) const {
  const double step = mixing(number);
  if (number >= kMostClasses || step >= 1.0) return 0;
  return std::min(kMostMixtures, static_cast<int>(std::ceil(1.0 / step)) - 1);
}

bool Cheapest::extend(std::int64_t item) {
  auto& touches = touches_[item];
  const auto number = model_->classes[item];
  std::uint64_t closing = 0;
  for (const auto& touch : touches) {
    const auto& net = nets_[touch.net];
    if (net.first == item && net.last > item) {
      const auto free = std::find(used_.begin(), used_.end(), false);
      if (free == used_.end()) return false;
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
  if (has_groups_ && !model_->is_reading(item)) choices.push_back({0, 0, 0, true});
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

double Cheapest::key_share(std::uint64_t key) const {
  const auto mixture = static_cast<int>((key & kMixture) >> kMixtureAt);
  if (mixture == 0) return 1.0;
  return share_of(static_cast<std::int32_t>((key & kClass) >> kClassAt) - 1, mixture);
}

void Cheapest::apply(std::int64_t item, std::size_t state, std::uint64_t key, std::size_t at,
           const Choice& choice, int mixture, double share, std::uint64_t closing,
           const std::vector<std::int32_t>& ended) {
  const double first = mixture > 0 ? share : 1.0, second = 1.0 - first;
  const double held = first * levels_[choice.first] + second * levels_[choice.second];
  const double weight = model_->work[item] * (first * least_levels_[choice.first] +
                                             second * least_levels_[choice.second]);
  if (weight > capacity_) return;
  double cost = model_->parameters[item] *
                    (first * (choice.first > 0) + second * (choice.second > 0)) -
                (prices_[item] + model_->credits[item]) * held;
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
      if (keeps_steps_) {
        next_steps_[to] = {static_cast<std::int32_t>(label), static_cast<std::int32_t>(at)};
      }
    }
    next_weights_[to] = std::min(next_weights_[to], total);
  }
  operations_ += static_cast<double>(labels_[state + 1] - labels_[state]) + kOfAChoice;
}

std::size_t Cheapest::place(std::uint64_t key) {
  const auto [found, is_new] = index_.try_emplace(key, next_states_.size());
  if (is_new) {
    next_states_.push_back(key);
    const auto size = next_states_.size() * static_cast<std::size_t>(grid_.buckets);
    next_costs_.resize(size, kInfinity);
    next_weights_.resize(size, kInfinity);
    if (keeps_steps_) next_steps_.resize(size);
  }
  return found->second;
}

void Cheapest::begin_step() {
  index_.clear();
  next_states_.clear();
  next_costs_.clear();
  next_weights_.clear();
  next_steps_.clear();
}

void Cheapest::end_step(std::int64_t item) {
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

Contents Cheapest::contents_of(std::int64_t label) const {
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

Contents Cheapest::evaluated(const std::vector<Choice>& taken, double share,
                   const std::array<double, 3>& levels) const {
  Contents contents;
  std::vector<std::array<int, 2>> paid(nets_.size(), {0, 0});
  for (std::size_t item = 0; item < taken.size(); ++item) {
    const auto at = static_cast<std::int64_t>(item);
    const auto& choice = taken[item];
    const double first = choice.mixture > 0 ? share : 1.0;
    contents.held.push_back(first * levels[choice.first] + (1 - first) * levels[choice.second]);
    contents.touched.push_back(!model_->is_reading(at) &&
                               (choice.trace || choice.first > 0 || choice.second > 0));
    contents.cost += model_->parameters[at] *
                         (first * (choice.first > 0) + (1 - first) * (choice.second > 0)) -
                     model_->credits[at] * contents.held.back();
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

}  // namespace hgpart
