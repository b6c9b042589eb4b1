#include "layer_counts.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "array_checks.hpp"
#include "portfolio.hpp"
#include "random.hpp"

namespace hgpart {

namespace {

constexpr double kRounding = 1e-9;  // of the capacities

// Work and bytes here are those of all slices times their number: whole, so that nothing drifts.
class Counting {
 public:
  Counting(const LayerModel& model, const std::vector<std::int32_t>& start,
           const CountOptions& options, const std::function<bool(std::int64_t)>& go_on)
      : model_(model),
        layers_(static_cast<int>(model.layers())),
        parts_(static_cast<int>(model.parts())),
        options_(options),
        go_on_(go_on),
        random_(options.seed),
        counts_(start),
        used_(parts_, 0.0),
        edges_(layers_),
        seen_(model.maps.size, 0),
        fine_cut_(layers_ + 1, true) {
    for (std::int64_t edge = 0; edge < model.maps.size; ++edge) {
      edges_[model.makers[edge]].push_back(static_cast<std::int32_t>(edge));
      edges_[model.readers[edge]].push_back(static_cast<std::int32_t>(edge));
    }
    for (int part = 0; part < parts_; ++part) {
      for (int layer = 0; layer < layers_; ++layer) used_[part] += count(part, layer) * load(layer);
      excess_ += above(part);
      room_ += used_[part] + room(part);
    }
    cost_ = cost();
    scale_ = std::max(1.0, cost_);
    price_ = options.price * scale_ / std::max(1.0, room_);
    least_price_ = 0.1 * price_;
    find_fine_cuts();
    keep_best();
  }

  CountResult run() {
    const double cooling = std::log(options_.coldest / options_.hottest);
    double temperature = 0;
    for (std::int64_t step = 0; step < options_.steps; ++step) {
      if (step % kStepsBetweenQuestions == 0) {
        if (!go_on_(kStepsBetweenQuestions)) break;
        const double progress = static_cast<double>(step) / static_cast<double>(options_.steps);
        temperature = scale_ * options_.hottest * std::exp(cooling * progress);
        price_ = is_within() ? std::max(least_price_, price_ * 0.95) : price_ * 1.1;
      }
      log_.clear();
      const double cost = cost_, excess = excess_;
      propose();
      const double change = cost_ - cost + price_ * (excess_ - excess);
      if (change > 0 && random_.unit() >= std::exp(-change / temperature)) {
        undo();
        cost_ = cost;
        excess_ = excess;
      } else {
        keep_best();
      }
    }
    return {std::move(best_), best_cost_ / static_cast<double>(model_.slices), best_excess_};
  }

 private:
  struct Move {
    std::int32_t from, to, layer, slices;
  };
  struct Run {
    int begin, end;  // of layers; none where they are the same
  };

  std::int32_t& count(int part, int layer) { return counts_[std::size_t(part) * layers_ + layer]; }
  double load(int layer) const { return static_cast<double>(model_.loads[layer]); }
  double room(int part) const {
    return static_cast<double>(model_.capacities[part]) * static_cast<double>(model_.slices) -
           used_[part];
  }
  double above(int part) const { return std::max(0.0, -room(part)); }
  bool is_within() const { return excess_ <= kRounding * room_; }
  double map_cost(int part, std::int32_t edge) {
    const auto more = count(part, model_.readers[edge]) - count(part, model_.makers[edge]);
    return more > 0 ? static_cast<double>(model_.maps[edge]) * more : 0.0;
  }
  double parameters(int layer) const {
    return static_cast<double>(model_.parameters[layer]) * static_cast<double>(model_.slices);
  }

  double cost() {
    double total = 0;
    for (int layer = 0; layer < layers_; ++layer) {
      int holders = 0;
      for (int part = 0; part < parts_; ++part) holders += count(part, layer) > 0;
      total += parameters(layer) * (holders - 1);
    }
    for (std::int32_t edge = 0; edge < model_.maps.size; ++edge) {
      for (int part = 0; part < parts_; ++part) total += map_cost(part, edge);
    }
    return total;
  }

  // What a run of layers costs in two parts.
  double cost(int one, int other, Run run) {
    double total = 0;
    ++visit_;
    for (int layer = run.begin; layer < run.end; ++layer) {
      const int holders = (count(one, layer) > 0) + (count(other, layer) > 0);
      total += parameters(layer) * holders;
      for (const auto edge : edges_[layer]) {
        if (seen_[edge] == visit_) continue;
        seen_[edge] = visit_;
        total += map_cost(one, edge) + map_cost(other, edge);
      }
    }
    return total;
  }

  // Where few bytes are cut: fewer than a layer before, and not more than one after.
  void find_fine_cuts() {
    std::vector<double> cut(layers_ + 1, 0);
    for (std::int64_t edge = 0; edge < model_.maps.size; ++edge) {
      for (auto at = model_.makers[edge] + 1; at <= model_.readers[edge]; ++at) {
        cut[at] += static_cast<double>(model_.maps[edge]);
      }
    }
    for (int at = 1; at < layers_; ++at) {
      fine_cut_[at] = (at == 1 || cut[at] <= cut[at - 1]) &&
                      (at == layers_ - 1 || cut[at] <= cut[at + 1]);
    }
  }

  // Layers beside each other that a part has slices of.
  Run some_run(int part) {
    int layer = static_cast<int>(random_.below(layers_)), tried = 0;
    while (tried < layers_ && count(part, layer) == 0) {
      layer = (layer + 1) % layers_;
      ++tried;
    }
    if (tried == layers_) return {0, 0};
    return run_around(part, layer);
  }

  Run run_around(int part, int layer) {
    Run run{layer, layer + 1};
    const auto kind = random_.below(4);
    if (kind > 0) {
      const std::int64_t length = kind == 1 ? 4 : kind == 2 ? 16 : 1000;
      while (run.begin > 0 && count(part, run.begin - 1) > 0 && !random_.one_in(length)) --run.begin;
      while (run.end < layers_ && count(part, run.end) > 0 && !random_.one_in(length)) ++run.end;
    }
    if (kind == 3 && random_.one_in(2)) {  // from here on, or up to here
      if (random_.one_in(2)) {
        run.begin = layer;
      } else {
        run.end = layer + 1;
      }
    }
    if (random_.one_in(2)) {  // to where few bytes are cut
      while (run.begin > 0 && count(part, run.begin - 1) > 0 && !fine_cut_[run.begin]) --run.begin;
      while (run.end < layers_ && count(part, run.end) > 0 && !fine_cut_[run.end]) ++run.end;
    }
    return run;
  }

  // Any part, or one that has slices of a layer beside the run.
  int some_part(int from, Run run) {
    int part = static_cast<int>(random_.below(parts_));
    if (random_.one_in(2)) {
      const int beside = random_.one_in(2) ? std::max(0, run.begin - 1)
                                           : std::min(layers_ - 1, run.end);
      for (int tried = 0; tried < parts_ && (part == from || count(part, beside) == 0); ++tried) {
        part = (part + 1) % parts_;
      }
    }
    return part;
  }

  std::int32_t some_slices(int from, int to, Run run) {
    std::int32_t most = 0;
    double all = 0;
    for (int layer = run.begin; layer < run.end; ++layer) {
      most = std::max(most, count(from, layer));
      all += load(layer);
    }
    switch (random_.below(4)) {
      case 0: return most;
      case 1: return 1;
      case 2: {
        const auto fit = all > 0 ? std::floor(room(to) / all) : 0.0;
        return fit < 1 || fit > most ? most : static_cast<std::int32_t>(fit);
      }
      default: return 1 + static_cast<std::int32_t>(random_.below(most));
    }
  }

  void propose() {
    auto moves = 1 + random_.below(3);
    int from = static_cast<int>(random_.below(parts_));
    if (random_.one_in(16)) {
      align(some_run(from));
      if (--moves == 0) return;
      from = static_cast<int>(random_.below(parts_));
    }
    int to = from;
    for (; moves > 0; --moves) {
      const Run run = some_run(from);
      if (run.begin == run.end) return;
      if (to == from || random_.one_in(3)) to = some_part(from, run);
      if (to == from) return;
      const auto slices = some_slices(from, to, run);
      move(from, to, run, slices);
      if (random_.one_in(4)) move_partner(from, to, run, slices);
      if (above(to) == 0 && random_.one_in(2)) return;
      std::swap(from, to);  // something in exchange
    }
  }

  // With a run, as many slices of layers that exchange maps with it past others: of a long skip.
  void move_partner(int from, int to, Run run, std::int32_t slices) {
    const auto& edges = edges_[run.begin + random_.below(run.end - run.begin)];
    if (edges.empty()) return;
    const auto edge = edges[random_.below(static_cast<std::int64_t>(edges.size()))];
    for (const int other : {model_.makers[edge], model_.readers[edge]}) {
      if ((other < run.begin || other >= run.end) && count(from, other) > 0) {
        move(from, to, run_around(from, other), slices);
        return;
      }
    }
  }

  // Gives layers the same counts as the one before them, or behind.
  void align(Run run) {
    const int like = random_.one_in(2) ? run.begin - 1 : run.end;
    if (like < 0 || like >= layers_) return;
    for (int layer = run.begin; layer < run.end; ++layer) {
      int from = 0, to = 0;
      for (;;) {
        while (from < parts_ && count(from, layer) <= count(from, like)) ++from;
        while (to < parts_ && count(to, layer) >= count(to, like)) ++to;
        if (from == parts_ || to == parts_) break;
        move(from, to, {layer, layer + 1},
             std::min(count(from, layer) - count(from, like), count(to, like) - count(to, layer)));
      }
    }
  }

  // Of each layer of a run so many slices, or as many as there are.
  void move(int from, int to, Run run, std::int32_t slices) {
    cost_ -= cost(from, to, run);
    excess_ -= above(from) + above(to);
    for (int layer = run.begin; layer < run.end; ++layer) {
      const auto own = std::min(slices, count(from, layer));
      if (own > 0) {
        shift({from, to, layer, own});
        log_.push_back({from, to, layer, own});
      }
    }
    excess_ += above(from) + above(to);
    cost_ += cost(from, to, run);
  }

  void shift(Move move) {
    count(move.from, move.layer) -= move.slices;
    count(move.to, move.layer) += move.slices;
    used_[move.from] -= move.slices * load(move.layer);
    used_[move.to] += move.slices * load(move.layer);
  }

  void undo() {
    for (auto last = log_.rbegin(); last != log_.rend(); ++last) {
      shift({last->to, last->from, last->layer, last->slices});
    }
  }

  void keep_best() {
    const double excess = is_within() ? 0.0 : excess_ / std::max(1.0, room_);
    if (!best_.empty() && std::pair(best_excess_, best_cost_) <= std::pair(excess, cost_)) return;
    best_ = counts_;
    best_cost_ = cost_;
    best_excess_ = excess;
  }

  const LayerModel& model_;
  const int layers_, parts_;
  const CountOptions options_;
  const std::function<bool(std::int64_t)>& go_on_;
  Random random_;
  std::vector<std::int32_t> counts_;
  std::vector<double> used_;                       // work of each part
  std::vector<std::vector<std::int32_t>> edges_;   // of each layer
  std::vector<std::int64_t> seen_;                 // the last visit of each edge
  std::int64_t visit_ = 0;
  std::vector<bool> fine_cut_;
  std::vector<Move> log_;
  double cost_ = 0, excess_ = 0, room_ = 0, scale_ = 1, price_ = 0, least_price_ = 0;
  std::vector<std::int32_t> best_;
  double best_cost_ = 0, best_excess_ = 0;
};

void check_layers(const LayerModel& model) {
  const auto layers = model.layers(), edges = model.maps.size;
  if (layers < 1) throw InvalidHypergraph("loads has length 0, expected 1 or more");
  if (model.slices < 1) throw InvalidHypergraph("slices is " + std::to_string(model.slices) +
                                                ", expected 1 or more");
  if (model.parts() < 1) throw InvalidHypergraph("capacities has length 0, expected 1 or more");
  check_not_negative("loads", model.loads);
  check_not_negative("capacities", model.capacities);
  check_length("parameters", model.parameters.size, layers, "one per layer");
  check_not_negative("parameters", model.parameters);
  check_length("makers", model.makers.size, edges, "one per map");
  check_length("readers", model.readers.size, edges, "one per map");
  check_not_negative("maps", model.maps);
  check_not_negative("makers", model.makers);
  check_below("readers", model.readers, layers);
  for (std::int64_t edge = 0; edge < edges; ++edge) {
    if (model.makers[edge] >= model.readers[edge]) {
      fail("makers", edge, model.makers[edge], "less than its reader");
    }
  }
}

void check_start(const LayerModel& model, const std::vector<std::int32_t>& start) {
  const auto layers = model.layers();
  check_length("counts", static_cast<std::int64_t>(start.size()), layers * model.parts(),
               "one per part and layer");
  check_not_negative("counts", {start.data(), static_cast<std::int64_t>(start.size())});
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::int64_t all = 0;
    for (std::int64_t part = 0; part < model.parts(); ++part) all += start[part * layers + layer];
    if (all != model.slices) {
      fail("sum of counts", layer, all, std::to_string(model.slices) + ", the slices");
    }
  }
}

void check_options(const CountOptions& options) {
  const bool is_cooling = std::isfinite(options.hottest) && options.coldest > 0 &&
                          options.hottest >= options.coldest;
  if (options.steps < 0 || !is_cooling || !(options.price >= 0)) {
    throw InvalidHypergraph("steps, temperatures or price are out of range, expected steps >= 0, "
                            "hottest >= coldest > 0 and price >= 0");
  }
}

}  // namespace

std::vector<CountResult> anneal_counts(const LayerModel& model,
                                       const std::vector<std::vector<std::int32_t>>& starts,
                                       const std::vector<CountOptions>& options, int threads,
                                       const std::function<bool(double)>& go_on) {
  check_layers(model);
  std::int64_t all_steps = 0;
  for (std::size_t at = 0; at < starts.size(); ++at) {
    check_start(model, starts[at]);
    check_options(options[at]);
    add_checked(all_steps, options[at].steps, "number of steps");
  }
  std::vector<CountResult> results(starts.size());
  run_all(
      starts.size(), all_steps, threads,
      [&](std::size_t at, const std::function<bool(std::int64_t)>& ask) {
        results[at] = Counting(model, starts[at], options[at], ask).run();
      },
      go_on);
  return results;
}

}  // namespace hgpart
