// The border to Python: records of arrays in, arrays out, errors as hgpart.errors.HypergraphError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contents.hpp"
#include "joining.hpp"
#include "layer_counts.hpp"
#include "list_schedule.hpp"
#include "metrics.hpp"
#include "portfolio.hpp"
#include "refinement.hpp"
#include "shared_words.hpp"
#include "simulation.hpp"
#include "validation.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr std::chrono::milliseconds kBetweenReports{200};

std::string describe(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "shape")) {
    return nb::type_name(object.type()).c_str();
  }
  return nb::str("{} of shape {}").format(object.attr("dtype"), object.attr("shape")).c_str();
}

// A Python array that is kept alive while native code reads it.
template <typename T>
class Input {
 public:
  // Nothing is converted: whether to copy 25 million pins is the caller's decision.
  Input(nb::handle object, const char* name, const char* dtype) {
    const bool is_array = nb::try_cast(object, array_, false);
    if (!is_array || reinterpret_cast<std::uintptr_t>(array_.data()) % alignof(T) != 0) {
      throw hgpart::InvalidHypergraph(std::string(name) + " is " + describe(object) +
                                      ", expected a contiguous one-dimensional array of " + dtype);
    }
  }

  hgpart::Span<T> span() const {
    return {array_.data(), static_cast<std::int64_t>(array_.size())};
  }

 private:
  nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu> array_;
};

// A number that is an attribute of a Python record.
template <typename T>
T number(nb::handle record, const char* name, const char* expected) {
  const nb::object value = record.attr(name);
  T result{};
  if (!nb::try_cast(value, result)) {
    throw hgpart::InvalidHypergraph(std::string(name) + " is " + nb::repr(value).c_str() +
                                    ", expected " + expected);
  }
  return result;
}

// The arrays of a hgpart.hypergraph.hypergraph.Hypergraph.
class HypergraphInput {
 public:
  explicit HypergraphInput(nb::handle record)
      : weights_(record.attr("weights"), "weights", "int64"),
        costs_(record.attr("costs"), "costs", "int64"),
        pointers_(record.attr("pointers"), "pointers", "int64"),
        pins_(record.attr("pins"), "pins", "int32"),
        gathers_(record.attr("gathers"), "gathers", "bool"),
        net_layers_(record.attr("net_layers"), "net_layers", "int32") {}

  hgpart::Hypergraph view() const {
    return {weights_.span(), costs_.span(),   pointers_.span(),
            pins_.span(),    gathers_.span(), net_layers_.span()};
  }

 private:
  Input<std::int64_t> weights_, costs_, pointers_;
  Input<std::int32_t> pins_;
  Input<bool> gathers_;
  Input<std::int32_t> net_layers_;
};

// Hands the vector's memory to a NumPy array.
template <typename T>
nb::object to_numpy(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto vector = std::make_unique<std::vector<T>>(std::move(values));
  T* data = vector->data();
  nb::capsule owner(vector.get(),
                    [](void* owned) noexcept { delete static_cast<std::vector<T>*>(owned); });
  vector.release();
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

template <typename T>
nb::object to_numpy(std::vector<T> values) {
  const std::size_t size = values.size();
  return to_numpy(std::move(values), {size});
}

// Runs a metric of the core over the arrays of a Python hypergraph, without the GIL.
template <typename Metric>
auto compute(Metric metric, nb::handle hypergraph, nb::handle parts, std::int64_t k) {
  const HypergraphInput arrays(hypergraph);
  const Input<std::int32_t> part_of_vertex(parts, "parts", "int32");
  nb::gil_scoped_release without_gil;
  return metric(arrays.view(), {part_of_vertex.span(), k});
}

nb::object refine(nb::handle hypergraph, nb::handle parts, nb::handle capacities,
                  std::uint64_t seed, double seconds, nb::handle may_lie) {
  using Clock = std::chrono::steady_clock;
  const HypergraphInput arrays(hypergraph);
  const Input<std::int32_t> part_of_vertex(parts, "parts", "int32");
  const Input<std::int64_t> capacity_of_part(capacities, "capacities", "int64");
  std::optional<Input<bool>> allowed;
  if (!may_lie.is_none()) allowed.emplace(may_lie.attr("ravel")(), "may_lie", "bool");
  std::vector<std::int32_t> refined(part_of_vertex.span().begin(), part_of_vertex.span().end());
  const auto start = Clock::now();
  bool interrupted = false;
  const auto go_on = [&] {
    nb::gil_scoped_acquire with_gil;
    interrupted = interrupted || PyErr_CheckSignals() != 0;
    return !interrupted && std::chrono::duration<double>(Clock::now() - start).count() < seconds;
  };
  {
    nb::gil_scoped_release without_gil;
    const hgpart::Span<bool> anywhere{nullptr, 0};
    hgpart::refine(arrays.view(), refined, capacity_of_part.span(),
                   allowed ? allowed->span() : anywhere, seed, go_on);
  }
  if (interrupted) throw nb::python_error();
  return to_numpy(std::move(refined));
}

// The arrays of a hgpart.partition.symmetry.symmetry.Symmetry.
class SymmetryInput {
 public:
  explicit SymmetryInput(nb::handle record)
      : class_units_(record.attr("class_units"), "class_units", "int64"),
        type_weights_(record.attr("type_weights"), "type_weights", "int64"),
        type_memory_(record.attr("type_memory"), "type_memory", "int64"),
        type_classes_(record.attr("type_classes").attr("ravel")(), "type_classes", "int32"),
        set_pointers_(record.attr("set_pointers"), "set_pointers", "int64"),
        set_types_(record.attr("set_types"), "set_types", "int32"),
        net_classes_(record.attr("net_classes"), "net_classes", "int32"),
        net_crossings_(record.attr("net_crossings"), "net_crossings", "int32"),
        net_sets_(record.attr("net_sets"), "net_sets", "int32"),
        net_costs_(record.attr("net_costs"), "net_costs", "int64"),
        net_gathers_(record.attr("net_gathers"), "net_gathers", "bool"),
        net_keeps_(record.attr("net_keeps"), "net_keeps", "bool"),
        net_memory_(record.attr("net_memory"), "net_memory", "int64"),
        net_pointers_(record.attr("net_pointers"), "net_pointers", "int64"),
        net_pins_(record.attr("net_pins"), "net_pins", "int32"),
        tiles_(record.attr("tiles").attr("ravel")(), "tiles", "int32"),
        type_parts_(limit(record, "parts").attr("ravel")(), "type_parts", "bool"),
        type_groups_(limit(record, "groups"), "type_groups", "int32"),
        type_sides_(limit(record, "sides").attr("ravel")(), "type_sides", "bool"),
        type_prices_(limit(record, "prices").attr("ravel")(), "type_prices", "int64"),
        slices_(of_tiles(record, 0)),
        bands_(of_tiles(record, 1)) {}

  hgpart::SymmetricModel view() const {
    return {class_units_.span(),  type_weights_.span(), type_memory_.span(), type_classes_.span(),
            set_pointers_.span(), set_types_.span(),    net_classes_.span(),  net_crossings_.span(),
            net_sets_.span(),     net_costs_.span(),    net_gathers_.span(),  net_keeps_.span(),
            net_memory_.span(),   net_pointers_.span(), net_pins_.span(),     tiles_.span(),
            slices_,              bands_,               type_parts_.span(),   type_groups_.span(),
            type_sides_.span(),  type_prices_.span()};
  }

 private:
  static nb::object limit(nb::handle record, const char* name) {
    return record.attr("limits").attr(name);
  }

  static std::int64_t of_tiles(nb::handle record, std::size_t dimension) {
    const nb::object shape = record.attr("tiles").attr("shape");
    if (nb::len(shape) != 3) {
      throw hgpart::InvalidHypergraph("tiles has " + std::to_string(nb::len(shape)) +
                                      " dimensions, expected 3: slices, bands and types");
    }
    return nb::cast<std::int64_t>(shape[dimension]);
  }

  Input<std::int64_t> class_units_, type_weights_, type_memory_;
  Input<std::int32_t> type_classes_;
  Input<std::int64_t> set_pointers_;
  Input<std::int32_t> set_types_, net_classes_, net_crossings_, net_sets_;
  Input<std::int64_t> net_costs_;
  Input<bool> net_gathers_, net_keeps_;
  Input<std::int64_t> net_memory_;
  Input<std::int64_t> net_pointers_;
  Input<std::int32_t> net_pins_, tiles_;
  Input<bool> type_parts_;
  Input<std::int32_t> type_groups_;
  Input<bool> type_sides_;
  Input<std::int64_t> type_prices_;
  std::int64_t slices_, bands_;
};

// A hgpart.partition.native.goal.Goal.
class GoalInput {
 public:
  explicit GoalInput(nb::handle record)
      : capacities_(record.attr("capacities"), "capacities", "int64"),
        memory_(record.attr("memory"), "memory", "int64"),
        objective_(number<std::int32_t>(record, "objective", "0, 1, 2 or 3")),
        links_(record.attr("links"), "links", "int64"),
        type_layers_(record.attr("type_layers"), "type_layers", "int32"),
        slowness_(record.attr("slowness"), "slowness", "int64"),
        work_time_(number<double>(record, "work_time", "a float")),
        link_time_(number<double>(record, "link_time", "a float")),
        micro_batches_(number<std::int32_t>(record, "micro_batches", "1 or more")) {}

  hgpart::Goal view() const {
    return {capacities_.span(), memory_.span(), static_cast<hgpart::Objective>(objective_),
            links_.span(),       type_layers_.span(), slowness_.span(), work_time_, link_time_,
            micro_batches_};
  }

 private:
  Input<std::int64_t> capacities_, memory_;
  std::int32_t objective_;
  Input<std::int64_t> links_;
  Input<std::int32_t> type_layers_;
  Input<std::int64_t> slowness_;
  double work_time_, link_time_;
  std::int32_t micro_batches_;
};

hgpart::Rows rows_of(nb::handle sizes, nb::handle parts) {
  hgpart::Rows rows;
  for (nb::handle own : sizes) {
    const Input<std::int64_t> array(own, "sizes", "int64");
    rows.sizes.emplace_back(array.span().begin(), array.span().end());
  }
  for (nb::handle own : parts) {
    const Input<std::int32_t> array(own, "parts", "int32");
    rows.parts.emplace_back(array.span().begin(), array.span().end());
  }
  return rows;
}

// Whether threads that search are to go on: asked by the thread that Python waits for.
class Watch {
 public:
  Watch(double seconds, nb::handle on_progress) : seconds_(seconds), on_progress_(on_progress) {}

  bool go_on(double done) {
    nb::gil_scoped_acquire with_gil;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!on_progress_.is_none() && Clock::now() - told_ > kBetweenReports) {
        told_ = Clock::now();
        on_progress_(done);
      }
    } catch (nb::python_error& raised) {
      if (raised.matches(PyExc_KeyboardInterrupt)) {
        interrupted_ = true;
      } else {
        error_ = std::current_exception();  // threads are running: it has to wait
      }
    }
    const std::chrono::duration<double> passed = Clock::now() - begin_;
    return !interrupted_ && !error_ && passed.count() < seconds_;
  }

  // Raises what was raised meanwhile.
  void end() const {
    if (error_) std::rethrow_exception(error_);
  }
  bool interrupted() const { return interrupted_; }

 private:
  using Clock = std::chrono::steady_clock;
  const double seconds_;
  const nb::handle on_progress_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point told_ = begin_;
  bool interrupted_ = false;
  std::exception_ptr error_;
};

// Anneals each (sizes, parts, seed, steps, hottest, coldest, price, most rows); returns a list of
// (sizes, parts, cost, excess), and whether Ctrl-C ended them. `on_progress` gets the share that is
// done, several times a second.
nb::object anneal(nb::handle symmetry, nb::handle goal, nb::handle chains, int threads,
                  double seconds, nb::handle on_progress) {
  const SymmetryInput arrays(symmetry);
  const GoalInput wanted(goal);
  std::vector<hgpart::Rows> starts;
  std::vector<hgpart::AnnealingOptions> options;
  for (nb::handle chain : chains) {
    starts.push_back(rows_of(chain.attr("sizes"), chain.attr("parts")));
    options.push_back({number<std::uint64_t>(chain, "seed", "0 to 2^64 - 1"),
                       number<std::int64_t>(chain, "steps", "a whole number"),
                       number<double>(chain, "hottest", "a float"),
                       number<double>(chain, "coldest", "a float"),
                       number<double>(chain, "price", "a float"),
                       number<std::int64_t>(chain, "most_rows", "a whole number")});
  }
  Watch watch(seconds, on_progress);
  std::vector<hgpart::AnnealingResult> results;
  {
    nb::gil_scoped_release without_gil;
    results = hgpart::anneal_all(arrays.view(), wanted.view(), starts, options, threads,
                                 [&](double done) { return watch.go_on(done); });
  }
  watch.end();
  nb::list found;
  for (auto& result : results) {
    nb::list sizes, parts;
    for (auto& own : result.rows.sizes) sizes.append(to_numpy(std::move(own)));
    for (auto& own : result.rows.parts) parts.append(to_numpy(std::move(own)));
    found.append(nb::make_tuple(sizes, parts, result.cost, result.excess));
  }
  return nb::make_tuple(found, watch.interrupted());
}

// The arrays of a hgpart.partition.native.layer_counts.LayerModel.
class LayerInput {
 public:
  explicit LayerInput(nb::handle record)
      : loads_(record.attr("loads"), "loads", "int64"),
        parameters_(record.attr("parameters"), "parameters", "int64"),
        makers_(record.attr("makers"), "makers", "int32"),
        readers_(record.attr("readers"), "readers", "int32"),
        maps_(record.attr("maps"), "maps", "int64"),
        capacities_(record.attr("capacities"), "capacities", "int64"),
        slices_(number<std::int64_t>(record, "slices", "1 or more")) {}

  hgpart::LayerModel view() const {
    return {loads_.span(), parameters_.span(), makers_.span(), readers_.span(),
            maps_.span(),  capacities_.span(), slices_};
  }

 private:
  Input<std::int64_t> loads_, parameters_;
  Input<std::int32_t> makers_, readers_;
  Input<std::int64_t> maps_, capacities_;
  std::int64_t slices_;
};

// Anneals the counts of each chain by its schedule; returns a list of (counts, cost,
// excess), and whether Ctrl-C ended them.
nb::object anneal_counts(nb::handle layers, nb::handle chains, int threads, double seconds,
                         nb::handle on_progress) {
  const LayerInput arrays(layers);
  std::vector<std::vector<std::int32_t>> starts;
  std::vector<hgpart::CountOptions> options;
  for (nb::handle chain : chains) {
    const Input<std::int32_t> counts(chain.attr("counts"), "counts", "int32");
    starts.emplace_back(counts.span().begin(), counts.span().end());
    const nb::object how = chain.attr("schedule");
    options.push_back({number<std::uint64_t>(how, "seed", "0 to 2^64 - 1"),
                       number<std::int64_t>(how, "steps", "a whole number"),
                       number<double>(how, "hottest", "a float"),
                       number<double>(how, "coldest", "a float"),
                       number<double>(how, "price", "a float")});
  }
  Watch watch(seconds, on_progress);
  std::vector<hgpart::CountResult> results;
  {
    nb::gil_scoped_release without_gil;
    results = hgpart::anneal_counts(arrays.view(), starts, options, threads,
                                    [&](double done) { return watch.go_on(done); });
  }
  watch.end();
  nb::list found;
  for (auto& result : results) {
    found.append(nb::make_tuple(to_numpy(std::move(result.counts)), result.cost, result.excess));
  }
  return nb::make_tuple(found, watch.interrupted());
}

// The arrays of a hgpart.partition.bounds.part_model.PartModel.
class ContentsInput {
 public:
  explicit ContentsInput(nb::handle record)
      : work_(record.attr("work"), "work", "float64"),
        parameters_(record.attr("parameters"), "parameters", "float64"),
        demands_(record.attr("demands"), "demands", "float64"),
        credits_(record.attr("credits"), "credits", "float64"),
        classes_(record.attr("classes"), "classes", "int32"),
        costs_(record.attr("costs"), "costs", "float64"),
        pointers_(record.attr("pointers"), "pointers", "int64"),
        nets_(record.attr("nets"), "nets", "int32"),
        dense_(record.attr("dense"), "dense", "bool"),
        capacities_(record.attr("capacities"), "capacities", "float64"),
        sliced_(number<bool>(record, "sliced", "True or False")) {}

  hgpart::ContentsModel view() const {
    return {work_.span(),    parameters_.span(), demands_.span(), credits_.span(),
            classes_.span(), costs_.span(),      pointers_.span(), nets_.span(),
            dense_.span(),   capacities_.span(), sliced_};
  }

 private:
  Input<double> work_, parameters_, demands_, credits_;
  Input<std::int32_t> classes_;
  Input<double> costs_;
  Input<std::int64_t> pointers_;
  Input<std::int32_t> nets_;
  Input<bool> dense_;
  Input<double> capacities_;
  bool sliced_;
};

// Returns the bound, as a share of the costs, and whether Ctrl-C ended the search for it.
nb::object contents_bound(nb::handle model, double operations, double seconds) {
  const ContentsInput arrays(model);
  Watch watch(seconds, nb::none());
  double bound;
  {
    nb::gil_scoped_release without_gil;
    bound = hgpart::contents_bound(arrays.view(), operations,
                                   [&](double done) { return watch.go_on(done); });
  }
  watch.end();
  return nb::make_tuple(bound, watch.interrupted());
}

// The arrays of a hgpart.prediction.jobs.TimedStep.
class TimedStepInput {
 public:
  explicit TimedStepInput(nb::handle record)
      : part_pointers_(record.attr("part_pointers"), "part_pointers", "int64"),
        seconds_(record.attr("seconds"), "seconds", "float64"),
        memory_bound_(record.attr("memory_bound"), "memory_bound", "float64"),
        await_pointers_(record.attr("await_pointers"), "await_pointers", "int64"),
        awaits_(record.attr("awaits"), "awaits", "int32"),
        send_pointers_(record.attr("send_pointers"), "send_pointers", "int64"),
        sends_(record.attr("sends"), "sends", "int32"),
        senders_(record.attr("senders"), "senders", "int32"),
        receivers_(record.attr("receivers"), "receivers", "int32"),
        travel_(record.attr("travel"), "travel", "float64"),
        both_ways_(record.attr("both_ways"), "both_ways", "float64"),
        handling_(record.attr("handling"), "handling", "float64") {}

  hgpart::TimedStep view() const {
    return {part_pointers_.span(), seconds_.span(), memory_bound_.span(), await_pointers_.span(),
            awaits_.span(), send_pointers_.span(), sends_.span(), senders_.span(),
            receivers_.span(), travel_.span(), both_ways_.span(), handling_.span()};
  }

 private:
  Input<std::int64_t> part_pointers_;
  Input<double> seconds_, memory_bound_;
  Input<std::int64_t> await_pointers_;
  Input<std::int32_t> awaits_;
  Input<std::int64_t> send_pointers_;
  Input<std::int32_t> sends_, senders_, receivers_;
  Input<double> travel_, both_ways_, handling_;
};

// When jobs begin and end, and when messages do; `steps` times the step's, one after another.
nb::object simulate(nb::handle step, nb::handle nodes, nb::handle slowdown,
                    nb::handle memory_slowdown, bool queues, std::int64_t steps) {
  const TimedStepInput arrays(step);
  const Input<std::int32_t> node_of_part(nodes, "nodes", "int32");
  const Input<double> plain(slowdown, "slowdown", "float64");
  const Input<double> bound(memory_slowdown, "memory_slowdown", "float64");
  hgpart::Spans spans;
  {
    nb::gil_scoped_release without_gil;
    spans = hgpart::simulate(arrays.view(),
                             {node_of_part.span(), plain.span(), bound.span(), queues}, steps);
  }
  return nb::make_tuple(to_numpy(std::move(spans.job_begins)), to_numpy(std::move(spans.job_ends)),
                        to_numpy(std::move(spans.message_begins)),
                        to_numpy(std::move(spans.message_ends)));
}

// The arrays of a hgpart.prediction.sketching.orders.ActionGraph.
class ActionGraphInput {
 public:
  explicit ActionGraphInput(nb::handle record)
      : parts_(record.attr("parts"), "parts", "int32"),
        seconds_(record.attr("seconds"), "seconds", "float64"),
        classes_(record.attr("classes"), "classes", "int32"),
        chunks_(record.attr("chunks"), "chunks", "int32"),
        begins_(record.attr("begins"), "begins", "bool"),
        pointers_(record.attr("pointers"), "pointers", "int64"),
        followers_(record.attr("followers"), "followers", "int32"),
        travels_(record.attr("travels"), "travels", "float64"),
        alive_(record.attr("alive"), "alive", "int64") {}

  hgpart::ActionGraph view() const {
    return {parts_.span(),    seconds_.span(),   classes_.span(), chunks_.span(), begins_.span(),
            pointers_.span(), followers_.span(), travels_.span(), alive_.span()};
  }

 private:
  Input<std::int32_t> parts_;
  Input<double> seconds_;
  Input<std::int32_t> classes_, chunks_;
  Input<bool> begins_;
  Input<std::int64_t> pointers_;
  Input<std::int32_t> followers_;
  Input<double> travels_;
  Input<std::int64_t> alive_;
};

// The actions of all micro-batches, numbered micro-batch by micro-batch, as parts begin them; and
// when each of them begins.
nb::object list_schedule(nb::handle graph, std::int64_t micro_batches) {
  const ActionGraphInput arrays(graph);
  hgpart::ListedActions listed;
  {
    nb::gil_scoped_release without_gil;
    listed = hgpart::list_schedule(arrays.view(), micro_batches);
  }
  return nb::make_tuple(to_numpy(std::move(listed.order)), to_numpy(std::move(listed.begins)));
}

// Units of work in groups that are done at once: where each group begins, and the units of all.
nb::object joined(nb::handle parts, nb::handle seconds, nb::handle once, nb::handle alike,
                  nb::handle pointers, nb::handle needs, nb::handle travels, std::int64_t most,
                  double rounding) {
  const Input<std::int32_t> part_of_unit(parts, "parts", "int32");
  const Input<double> growing(seconds, "seconds", "float64"), fixed(once, "once", "float64");
  const Input<std::int32_t> classes(alike, "alike", "int32");
  const Input<std::int64_t> first_needs(pointers, "pointers", "int64");
  const Input<std::int32_t> units_before(needs, "needs", "int32");
  const Input<double> arriving(travels, "travels", "float64");
  std::vector<std::int64_t> begins{0};
  std::vector<std::int32_t> members;
  {
    nb::gil_scoped_release without_gil;
    const hgpart::WorkUnits units{part_of_unit.span(), growing.span(),      fixed.span(),
                                  classes.span(),      first_needs.span(), units_before.span(),
                                  arriving.span()};
    for (const hgpart::Group& group : hgpart::joined(units, most, rounding)) {
      members.insert(members.end(), group.begin(), group.end());
      begins.push_back(static_cast<std::int64_t>(members.size()));
    }
  }
  return nb::make_tuple(to_numpy(std::move(begins)), to_numpy(std::move(members)));
}

// Words in memory that several processes have. These are functions, as an object that graphs of
// torch keep until the end would be reported as a leak.
using SharedWords = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::int64_t& word(const SharedWords& words, std::size_t at) {
  if (at >= words.size()) throw nb::index_error("no such word");
  return words.data()[at];
}

void publish(const SharedWords& words, std::size_t at, std::int64_t number) {
  hgpart::publish(word(words, at), number);
}

bool wait_for(const SharedWords& words, std::size_t at, std::int64_t number, std::size_t closed,
              double seconds) {
  const std::chrono::microseconds longest{static_cast<std::int64_t>(seconds * 1e6)};
  const std::int64_t &waited_for = word(words, at), &end = word(words, closed);
  nb::gil_scoped_release without_gil;
  return hgpart::wait_for(waited_for, number, end, longest);
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "hgpart's native core: metrics, refinement, annealing and simulation.";

  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const hgpart::InvalidHypergraph& invalid) {
      nb::object type = nb::module_::import_("hgpart.errors").attr("HypergraphError");
      PyErr_SetString(type.ptr(), invalid.what());
    }
  });

  const auto scalar = [&](const char* name, auto metric) {
    module.def(
        name,
        [metric](nb::handle hypergraph, nb::handle parts, std::int64_t k) {
          return compute(metric, hypergraph, parts, k);
        },
        "hypergraph"_a, "parts"_a, "k"_a);
  };
  scalar("communication_volume", hgpart::communication_volume);
  scalar("cut_net", hgpart::cut_net);

  module.def(
      "part_loads",
      [](nb::handle hypergraph, nb::handle parts, std::int64_t k) {
        return to_numpy(compute(hgpart::part_loads, hypergraph, parts, k));
      },
      "hypergraph"_a, "parts"_a, "k"_a);

  const auto table = [&](const char* name, auto metric) {
    module.def(
        name,
        [metric](nb::handle hypergraph, nb::handle parts, std::int64_t k) {
          const auto side = static_cast<std::size_t>(k);
          return to_numpy(compute(metric, hypergraph, parts, k), {side, side});
        },
        "hypergraph"_a, "parts"_a, "k"_a);
  };
  table("traffic", hgpart::traffic);
  table("messages", hgpart::messages);

  module.def("anneal", &anneal, "symmetry"_a, "goal"_a, "chains"_a, "threads"_a,
             "seconds"_a = std::numeric_limits<double>::infinity(), "on_progress"_a = nb::none());
  module.def("anneal_counts", &anneal_counts, "layers"_a, "chains"_a, "threads"_a,
             "seconds"_a = std::numeric_limits<double>::infinity(), "on_progress"_a = nb::none());
  module.def("contents_bound", &contents_bound, "model"_a, "operations"_a,
             "seconds"_a = std::numeric_limits<double>::infinity());
  module.def("refine", &refine, "hypergraph"_a, "parts"_a, "capacities"_a, "seed"_a,
             "seconds"_a = std::numeric_limits<double>::infinity(), "may_lie"_a = nb::none());
  module.def("joined", &joined, "parts"_a, "seconds"_a, "once"_a, "alike"_a, "pointers"_a,
             "needs"_a, "travels"_a, "most"_a, "rounding"_a);
  module.def("list_schedule", &list_schedule, "graph"_a, "micro_batches"_a);
  module.def("publish", &publish, nb::arg("words").noconvert(), "at"_a, "number"_a);
  module.def("wait_for", &wait_for, nb::arg("words").noconvert(), "at"_a, "number"_a, "closed"_a,
             "seconds"_a);
  module.def("simulate", &simulate, "step"_a, "nodes"_a, "slowdown"_a, "memory_slowdown"_a,
             "queues"_a, "steps"_a = 1);
}
