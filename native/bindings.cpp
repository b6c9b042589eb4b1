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

template <typename T>
constexpr const char* kDtype = nullptr;
template <>
constexpr const char* kDtype<std::int64_t> = "int64";
template <>
constexpr const char* kDtype<std::int32_t> = "int32";
template <>
constexpr const char* kDtype<double> = "float64";
template <>
constexpr const char* kDtype<bool> = "bool";

// A Python array that is kept alive while native code reads it.
template <typename T>
class Input {
 public:
  // Nothing is converted: whether to copy 25 million pins is the caller's decision.
  Input(nb::handle object, const char* name) {
    const bool is_array = nb::try_cast(object, array_, false);
    if (!is_array || reinterpret_cast<std::uintptr_t>(array_.data()) % alignof(T) != 0) {
      throw hgpart::InvalidHypergraph(std::string(name) + " is " + describe(object) +
                                      ", expected a contiguous one-dimensional array of " +
                                      kDtype<T>);
    }
  }

  hgpart::Span<T> span() const {
    return {array_.data(), static_cast<std::int64_t>(array_.size())};
  }

  nb::ndarray<> owner() const { return nb::ndarray<>(array_.handle()); }

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

// Arrays that are attributes of Python records, kept alive while native code reads them.
class Arrays {
 public:
  // An array as a span, of the type that it is to be read as.
  struct Array {
    Arrays& arrays;
    nb::object array;
    const char* name;

    template <typename T>
    operator hgpart::Span<T>() const {
      const Input<T> input(array, name);
      arrays.owners_.push_back(input.owner());
      return input.span();
    }
  };

  explicit Arrays(nb::handle of) : record(nb::borrow(of)) {}

  Array operator[](const char* name) { return {*this, record.attr(name), name}; }
  Array flat(const char* name) { return {*this, record.attr(name).attr("ravel")(), name}; }

  const nb::object record;

 private:
  std::vector<nb::ndarray<>> owners_;
};

// A hgpart.hypergraph.hypergraph.Hypergraph.
hgpart::Hypergraph hypergraph_of(Arrays& of) {
  return {of["weights"], of["costs"], of["pointers"], of["pins"], of["gathers"], of["net_layers"]};
}

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
  Arrays arrays(hypergraph);
  const hgpart::Hypergraph view = hypergraph_of(arrays);
  const Input<std::int32_t> part_of_vertex(parts, "parts");
  nb::gil_scoped_release without_gil;
  return metric(view, {part_of_vertex.span(), k});
}

nb::object refine(nb::handle hypergraph, nb::handle parts, nb::handle capacities,
                  std::uint64_t seed, double seconds, nb::handle may_lie) {
  using Clock = std::chrono::steady_clock;
  Arrays arrays(hypergraph);
  const hgpart::Hypergraph view = hypergraph_of(arrays);
  const Input<std::int32_t> part_of_vertex(parts, "parts");
  const Input<std::int64_t> capacity_of_part(capacities, "capacities");
  std::optional<Input<bool>> allowed;
  if (!may_lie.is_none()) allowed.emplace(may_lie.attr("ravel")(), "may_lie");
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
    hgpart::refine(view, refined, capacity_of_part.span(),
                   allowed ? allowed->span() : anywhere, seed, go_on);
  }
  if (interrupted) throw nb::python_error();
  return to_numpy(std::move(refined));
}

std::int64_t length(nb::handle tiles, std::size_t dimension) {
  const nb::object shape = tiles.attr("shape");
  if (nb::len(shape) != 3) {
    throw hgpart::InvalidHypergraph("tiles has " + std::to_string(nb::len(shape)) +
                                    " dimensions, expected 3: slices, bands and types");
  }
  return nb::cast<std::int64_t>(shape[dimension]);
}

// A hgpart.partition.symmetry.symmetry.Symmetry, and its limits.
hgpart::SymmetricModel symmetric_model(Arrays& of, Arrays& limits) {
  const nb::object tiles = of.record.attr("tiles");
  return {of["class_units"],
          of["type_weights"],
          of["type_memory"],
          of.flat("type_classes"),
          of["set_pointers"],
          of["set_types"],
          of["net_classes"],
          of["net_crossings"],
          of["net_sets"],
          of["net_costs"],
          of["net_gathers"],
          of["net_keeps"],
          of["net_memory"],
          of["net_pointers"],
          of["net_pins"],
          of.flat("tiles"),
          length(tiles, 0),
          length(tiles, 1),
          limits.flat("parts"),
          limits["groups"],
          limits.flat("sides"),
          limits.flat("prices")};
}

// A hgpart.partition.native.goal.Goal.
hgpart::Goal goal_of(Arrays& of) {
  const auto objective = number<std::int32_t>(of.record, "objective", "0, 1, 2 or 3");
  return {of["capacities"],
          of["memory"],
          static_cast<hgpart::Objective>(objective),
          of["links"],
          of["type_layers"],
          of["slowness"],
          number<double>(of.record, "work_time", "a float"),
          number<double>(of.record, "link_time", "a float"),
          number<std::int32_t>(of.record, "micro_batches", "1 or more")};
}

hgpart::Rows rows_of(nb::handle sizes, nb::handle parts) {
  hgpart::Rows rows;
  for (nb::handle own : sizes) {
    const Input<std::int64_t> array(own, "sizes");
    rows.sizes.emplace_back(array.span().begin(), array.span().end());
  }
  for (nb::handle own : parts) {
    const Input<std::int32_t> array(own, "parts");
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
  Arrays arrays(symmetry), limits(symmetry.attr("limits")), wanted(goal);
  const hgpart::SymmetricModel model = symmetric_model(arrays, limits);
  const hgpart::Goal aim = goal_of(wanted);
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
    results = hgpart::anneal_all(model, aim, starts, options, threads,
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

// A hgpart.partition.native.layer_counts.LayerModel.
hgpart::LayerModel layer_model(Arrays& of) {
  return {of["loads"], of["parameters"], of["makers"],
          of["readers"], of["maps"], of["capacities"],
          number<std::int64_t>(of.record, "slices", "1 or more")};
}

// Anneals the counts of each chain by its schedule; returns a list of (counts, cost,
// excess), and whether Ctrl-C ended them.
nb::object anneal_counts(nb::handle layers, nb::handle chains, int threads, double seconds,
                         nb::handle on_progress) {
  Arrays arrays(layers);
  const hgpart::LayerModel model = layer_model(arrays);
  std::vector<std::vector<std::int32_t>> starts;
  std::vector<hgpart::CountOptions> options;
  for (nb::handle chain : chains) {
    const Input<std::int32_t> counts(chain.attr("counts"), "counts");
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
    results = hgpart::anneal_counts(model, starts, options, threads,
                                    [&](double done) { return watch.go_on(done); });
  }
  watch.end();
  nb::list found;
  for (auto& result : results) {
    found.append(nb::make_tuple(to_numpy(std::move(result.counts)), result.cost, result.excess));
  }
  return nb::make_tuple(found, watch.interrupted());
}

// A hgpart.partition.bounds.part_model.PartModel.
hgpart::ContentsModel contents_model(Arrays& of) {
  return {of["work"],    of["parameters"], of["demands"],    of["credits"], of["classes"],
          of["costs"],   of["pointers"],   of["nets"],       of["dense"],   of["capacities"],
          number<bool>(of.record, "sliced", "True or False")};
}

// Returns the bound, as a share of the costs, and whether Ctrl-C ended the search for it.
nb::object contents_bound(nb::handle model, double operations, double seconds) {
  Arrays arrays(model);
  const hgpart::ContentsModel view = contents_model(arrays);
  Watch watch(seconds, nb::none());
  double bound;
  {
    nb::gil_scoped_release without_gil;
    bound = hgpart::contents_bound(view, operations,
                                   [&](double done) { return watch.go_on(done); });
  }
  watch.end();
  return nb::make_tuple(bound, watch.interrupted());
}

// A hgpart.prediction.jobs.TimedStep.
hgpart::TimedStep timed_step(Arrays& of) {
  return {of["part_pointers"], of["seconds"], of["memory_bound"], of["await_pointers"],
          of["awaits"], of["send_pointers"], of["sends"], of["senders"],
          of["receivers"], of["travel"], of["both_ways"], of["handling"]};
}

// When jobs begin and end, and when messages do; `steps` times the step's, one after another.
nb::object simulate(nb::handle step, nb::handle nodes, nb::handle slowdown,
                    nb::handle memory_slowdown, bool queues, std::int64_t steps) {
  Arrays arrays(step);
  const hgpart::TimedStep view = timed_step(arrays);
  const Input<std::int32_t> node_of_part(nodes, "nodes");
  const Input<double> plain(slowdown, "slowdown");
  const Input<double> bound(memory_slowdown, "memory_slowdown");
  hgpart::Spans spans;
  {
    nb::gil_scoped_release without_gil;
    const hgpart::Sharing sharing{node_of_part.span(), plain.span(), bound.span(), queues};
    spans = hgpart::simulate(view, sharing, steps);
  }
  return nb::make_tuple(to_numpy(std::move(spans.job_begins)), to_numpy(std::move(spans.job_ends)),
                        to_numpy(std::move(spans.message_begins)),
                        to_numpy(std::move(spans.message_ends)));
}

// A hgpart.prediction.sketching.orders.ActionGraph.
hgpart::ActionGraph action_graph(Arrays& of) {
  return {of["parts"], of["seconds"], of["classes"], of["chunks"], of["begins"],
          of["pointers"], of["followers"], of["travels"], of["alive"]};
}

// The actions of all micro-batches, numbered micro-batch by micro-batch, as parts begin them; and
// when each of them begins.
nb::object list_schedule(nb::handle graph, std::int64_t micro_batches) {
  Arrays arrays(graph);
  const hgpart::ActionGraph view = action_graph(arrays);
  hgpart::ListedActions listed;
  {
    nb::gil_scoped_release without_gil;
    listed = hgpart::list_schedule(view, micro_batches);
  }
  return nb::make_tuple(to_numpy(std::move(listed.order)), to_numpy(std::move(listed.begins)));
}

// Units of work in groups that are done at once: where each group begins, and the units of all.
nb::object joined(nb::handle parts, nb::handle seconds, nb::handle once, nb::handle alike,
                  nb::handle pointers, nb::handle needs, nb::handle travels, std::int64_t most,
                  double rounding) {
  const Input<std::int32_t> part_of_unit(parts, "parts");
  const Input<double> growing(seconds, "seconds"), fixed(once, "once");
  const Input<std::int32_t> classes(alike, "alike");
  const Input<std::int64_t> first_needs(pointers, "pointers");
  const Input<std::int32_t> units_before(needs, "needs");
  const Input<double> arriving(travels, "travels");
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
