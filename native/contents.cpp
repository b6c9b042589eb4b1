#include "contents.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "array_checks.hpp"
#include "cheapest_contents.hpp"
#include "covering_program.hpp"

// The prices are those of the linear program over the contents that were found so far (column
// generation: Gilmore and Gomory, 1961; smoothed as by Wentges, 1997). `cheapest_contents.cpp`
// finds contents that cost less than them, and says why a proof that covers all f and t holds.

namespace hgpart {
namespace {

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

constexpr double kFinestShare = 1.0 / 200;   // of the samples, in capacities: one cell is below it
constexpr std::array<double, 3> kSmallShares{0.04, 0.01, 0.0005};  // in capacities
constexpr int kMostRounds = 150;              // of better prices, at each fineness
// Of demands that are not met: of items in proportion to their first prices, and some more. Where
// some are not, though prices are near the best, it is so much more.
constexpr double kPenalty = 3.0, kLeastPenalty = 0.3, kMorePenalty = 4.0, kMostPenalty = 10.0;
constexpr double kUnmet = 1e-4;
constexpr double kWeightOfBest = 0.6;        // of the best prices so far, in the next ones
// Of the operations: until the end of each proof, and of what is between two, for prices.
constexpr std::array<double, 3> kLimits{0.02, 0.15, 1.0};
constexpr double kShareOfPrices = 0.55;
constexpr double kOver = 1.2;                // of a limit, where a search is ended for it
constexpr std::size_t kMostWorst = 6;        // cells of a proof, whose shares are priced then, too
constexpr std::size_t kMostGroups = 12, kGroupsAtOnce = 3, kFewShares = 4;
constexpr double kMissing = 0.02;            // of a part, that a group lacks
// Prices and proofs get no finer mixtures where the last ones changed the bound by less than these
// shares, unless that takes but a little share of all operations. No more prices are looked for
// where a proof is this near to what they promise.
constexpr double kPricesGain = 0.005, kProofGain = 0.01, kLittle = 0.1, kProofNear = 0.01;
constexpr double kNextProof = 3.0;  // operations of a proof, as a multiple of the one before
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
    for (std::int64_t item = 0; item < model.items(); ++item) {
      if (!model.is_reading(item)) demanded_.push_back(static_cast<std::size_t>(item));
    }
  }

  double bound() {
    best_prices_ = first_prices();
    const double least = kLeastPenalty / static_cast<double>(demanded_.size());
    for (const auto item : demanded_) penalties_.push_back(kPenalty * best_prices_[item] + least);
    double best = -kInfinity, last_limit = 0.0;
    std::size_t finest = 0;
    for (const double limit : kLimits) {
      if (!model_.sliced && limit < 1.0) continue;
      price_limit_ = (last_limit + kShareOfPrices * (limit - last_limit)) * most_operations_;
      proof_limit_ = limit * most_operations_;
      last_limit = limit;
      const auto is_last = [&] { return finest + 1 == kPricings.size(); };
      bool in_time = false;
      for (double before = best_; has_time_for_prices(kPricings[finest]); before = best_) {
        // Without shares of the samples, finer mixtures are cheap, and what they gain comes in
        // jumps.
        const bool is_settled =
            model_.sliced && std::abs(best_ - before) <= kPricesGain * std::abs(best_);
        in_time = is_settled || is_last();
        if (in_time) break;
        ++finest;
      }
      best = std::max(best, proven(!is_last()));
      if (is_near(best) || (is_last() && !model_.sliced)) break;
      if (in_time && !is_last()) ++finest;
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

  // Whether a bound is about what the prices promise.
  bool is_near(double bound) const { return bound >= best_ - kProofNear * std::abs(best_); }

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

  // Prices by which the items that touch a net share its cost in proportion to their work. What a
  // reading has of it, what reads has instead.
  std::vector<double> first_prices() const {
    std::vector<std::vector<std::int64_t>> items_of(static_cast<std::size_t>(model_.costs.size));
    for (std::int64_t item = 0; item < model_.items(); ++item) {
      for (auto at = model_.pointers[item]; at < model_.pointers[item + 1]; ++at) {
        items_of[model_.nets[at]].push_back(item);
      }
    }
    std::vector<double> work;
    for (const double own : model_.work) work.push_back(own + 1e-6);
    std::vector<double> prices(model_.parameters.begin(), model_.parameters.end());
    const auto share = [&](const std::vector<std::int64_t>& items, double cost) {
      double sum = 0.0;
      for (const auto item : items) sum += work[item];
      for (const auto item : items) prices[item] += cost * work[item] / sum;
    };
    std::vector<std::vector<std::int64_t>> read_behind(work.size());
    for (const auto& items : items_of) {
      if (!items.empty() && model_.is_reading(items.front())) {
        read_behind[items.front()].assign(items.begin() + 1, items.end());
      }
    }
    for (auto item = model_.items(); item-- > 0;) {
      for (const auto reader : read_behind[item]) work[item] += work[reader];
    }
    for (std::int64_t net = 0; net < model_.costs.size; ++net) {
      const auto& items = items_of[net];
      if (!items.empty() && !model_.is_reading(items.front())) share(items, model_.costs[net]);
    }
    for (std::int64_t item = 0; item < model_.items(); ++item) {
      if (model_.is_reading(item)) share(read_behind[item], std::exchange(prices[item], 0.0));
    }
    return prices;
  }

  double demanded(const std::vector<double>& prices, const std::vector<double>& of_groups) const {
    double sum = std::inner_product(prices.begin(), prices.end(), model_.demands.begin(), 0.0);
    for (std::size_t at = 0; at < of_groups.size(); ++at) sum += of_groups[at] * groups_[at].parts;
    return sum - once();
  }

  // What a linear program demands: items but for readings, then groups.
  std::vector<double> column(const Contents& contents) const {
    std::vector<double> column;
    for (const auto item : demanded_) column.push_back(contents.held[item]);
    for (const auto& group : groups_) {
      bool touched = false;
      for (auto item = group.first; item <= group.last; ++item) {
        touched = touched || contents.touched[static_cast<std::size_t>(item)];
      }
      column.push_back(touched);
    }
    return column;
  }

  CoveringProgram program() {
    std::vector<double> demands(demanded_.size(), 1.0);
    for (const auto& group : groups_) demands.push_back(group.parts);
    penalties_.resize(demands.size() + 1, kPenalty);
    CoveringProgram program(std::move(demands), static_cast<double>(capacities_.size()),
                            penalties_);
    for (const auto& contents : known_) program.add(column(contents), contents.cost);
    return program;
  }

  // Raises the penalties of demands that are not met; returns whether there are any.
  bool penalise(const std::vector<double>& missing) {
    bool any = false;
    for (std::size_t at = 0; at < missing.size(); ++at) {
      if (missing[at] <= kUnmet || penalties_[at] > kMostPenalty) continue;
      penalties_[at] *= kMorePenalty;
      any = true;
    }
    return any;
  }

  // Better prices; returns whether there is time for more. What they promise remains where there
  // was no time for any.
  bool has_time_for_prices(const Fineness& fineness) {
    const double before = best_;
    const bool has_time = find_prices(fineness);
    if (best_ == -kInfinity) best_ = before;
    return has_time;
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
    double weight_of_best = kWeightOfBest;
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
          own_least -= of_groups[at] * own_column[demanded_.size() + at];
        }
        for (auto& value : own) {
          if (value == offers_least(offers)) value = own_least;
        }
        for (std::size_t part = 0; part < least.size(); ++part) {
          least[part] = std::min(least[part], own[part]);
        }
        if (seen_.emplace(contents.held, contents.touched).second) {
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
      const bool is_stuck = !learned && !is_better;
      if (was_of_all && (reachable - best_ <= fineness.close * std::abs(reachable) ||
                         (is_stuck && weight_of_best == 0.0))) {
        if (!penalise(covering.missing()) &&
            (fineness.step == kNoMixtures || !add_groups(covering.taken()))) {
          return true;
        }
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
      weight_of_best = is_stuck ? 0.0 : kWeightOfBest;
      const auto& newest = covering.prices();
      for (std::size_t at = 0; at < demanded_.size(); ++at) {
        const auto item = demanded_[at];
        prices[item] = weight_of_best * best_prices_[item] + (1 - weight_of_best) * newest[at];
      }
      for (std::size_t at = 0; at < of_groups.size(); ++at) {
        of_groups[at] = weight_of_best * best_of_groups_[at] +
                        (1 - weight_of_best) * std::max(0.0, newest[demanded_.size() + at]);
      }
    }
    return true;
  }

  // What nets and parameters cost once; links of readings, as much as their credits, nothing.
  double once() const {
    return std::accumulate(model_.costs.begin(), model_.costs.end(), 0.0) -
           std::accumulate(model_.credits.begin(), model_.credits.end(), 0.0) +
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

  // The bound at the best prices: the least over all shares of the samples, cell by cell. Where
  // there may be better prices, a proof ends once finer mixtures gain little.
  double proven(bool may_be_better) {
    cheapest_.price(best_prices_, best_of_groups_);
    cheapest_.limit(kOver * most_operations_ - spent_);
    const double demanded_once = demanded(best_prices_, best_of_groups_);
    double best = -kInfinity;
    for (const auto& fineness : kProofs) {
      const double before = operations(), best_before = best;
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
      const double next = kNextProof * used;
      if (!goes_on() || operations() + next > proof_limit_) break;
      const bool gains_little = best - best_before < kProofGain * best;
      if ((may_be_better || is_near(best)) && gains_little && next > kLittle * operations()) break;
    }
    return best - kRounding;
  }

  const ContentsModel& model_;
  const double most_operations_;
  const std::function<bool(double)>& go_on_;
  const std::vector<double> capacities_;
  double largest_class_ = 0.0, spent_ = 0.0, price_limit_ = 0.0, proof_limit_ = 0.0;
  std::vector<double> more_shares_, penalties_;
  std::vector<std::size_t> demanded_;  // items that are no readings
  std::vector<Group> groups_;
  Cheapest cheapest_;
  std::vector<Contents> known_;
  std::set<std::pair<std::vector<double>, std::vector<bool>>> seen_;
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
  check_numbers("demands", model.demands, items, "one per item");
  check_numbers("credits", model.credits, items, "one per item");
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
  for (std::int64_t item = 0; item < items; ++item) {
    for (auto at = model.pointers[item] + 1; at < model.pointers[item + 1]; ++at) {
      if (model.nets[at] <= model.nets[at - 1]) {
        fail("nets", at, model.nets[at], "ascending numbers at each item");
      }
    }
  }
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
