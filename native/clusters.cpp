#include "clusters.hpp"

#include <algorithm>
#include <numeric>

#include "random.hpp"

namespace hgpart {

namespace {

struct Edge {
  std::int32_t to;
  double bytes;
};

using Graph = std::vector<std::vector<Edge>>;  // edges of each node, each edge with both ends

void unite_parallel(std::vector<Edge>& edges) {
  std::sort(edges.begin(), edges.end(), [](auto& a, auto& b) { return a.to < b.to; });
  std::size_t kept = 0;
  for (const auto& edge : edges) {
    if (kept > 0 && edges[kept - 1].to == edge.to) {
      edges[kept - 1].bytes += edge.bytes;
    } else {
      edges[kept++] = edge;
    }
  }
  edges.resize(kept);
}

std::int64_t units_of(const SymmetricModel& model, std::int32_t first, std::int32_t second) {
  return model.class_units[first] * (second < 0 ? 1 : model.class_units[second]);
}

// Each net joins its root's type to those of its other pins, which share what it costs.
Graph graph_of(const SymmetricModel& model) {
  Graph graph(model.types());
  std::vector<std::int32_t> pins;
  for (std::int64_t net = 0; net < model.nets(); ++net) {
    pins.clear();
    for (auto at = model.net_pointers[net]; at < model.net_pointers[net + 1]; ++at) {
      pins.push_back(model.net_pins[at] / 2);
    }
    const auto root = pins.front(), set = model.net_sets[net];
    pins.insert(pins.end(), model.set_types.begin() + model.set_pointers[set],
                model.set_types.begin() + model.set_pointers[set + 1]);
    std::sort(pins.begin(), pins.end());
    pins.erase(std::unique(pins.begin(), pins.end()), pins.end());
    pins.erase(std::remove(pins.begin(), pins.end(), root), pins.end());
    const auto units = units_of(model, model.net_classes[net], model.net_crossings[net]);
    const auto bytes = static_cast<double>(model.net_costs[net]) * static_cast<double>(units) /
                       static_cast<double>(std::max<std::size_t>(1, pins.size()));
    for (const auto type : pins) {
      graph[root].push_back({type, bytes});
      graph[type].push_back({root, bytes});
    }
  }
  for (auto& edges : graph) unite_parallel(edges);
  return graph;
}

// Pairs nodes, in a random order, each with the free neighbour with which it exchanges most for what
// both compute. `least` is added to the work of each, as some have none.
std::vector<std::int32_t> paired(const Graph& graph, const std::vector<double>& work, double most,
                                 double least, Random& random) {
  const auto nodes = static_cast<std::int32_t>(graph.size());
  std::vector<std::int32_t> cluster(nodes, -1), order(nodes);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[random.below(left)]);
  }
  std::int32_t clusters = 0;
  for (const auto node : order) {
    if (cluster[node] >= 0) continue;
    std::int32_t best = -1;
    double best_rating = 0;
    for (const auto& edge : graph[node]) {
      if (cluster[edge.to] >= 0 || work[node] + work[edge.to] > most) continue;
      const auto rating = edge.bytes / ((work[node] + least) * (work[edge.to] + least));
      if (rating > best_rating) {
        best = edge.to;
        best_rating = rating;
      }
    }
    cluster[node] = clusters++;
    if (best >= 0) cluster[best] = cluster[node];
  }
  return cluster;
}

Graph joined(const Graph& graph, const std::vector<std::int32_t>& cluster, std::size_t clusters) {
  Graph result(clusters);
  for (std::size_t node = 0; node < graph.size(); ++node) {
    for (const auto& edge : graph[node]) {
      if (cluster[edge.to] == cluster[node]) continue;
      result[cluster[node]].push_back({cluster[edge.to], edge.bytes});
    }
  }
  for (auto& edges : result) unite_parallel(edges);
  return result;
}

}  // namespace

Clusters clusters_of(const SymmetricModel& model, std::int64_t most, std::uint64_t seed) {
  Graph graph = graph_of(model);
  std::vector<double> work(model.types());
  for (std::int64_t type = 0; type < model.types(); ++type) {
    const auto units =
        units_of(model, model.type_classes[2 * type], model.type_classes[2 * type + 1]);
    work[type] = static_cast<double>(model.type_weights[type]) * static_cast<double>(units);
  }
  const auto all = std::accumulate(work.begin(), work.end(), 0.0);
  const auto least = std::max(1.0, all / static_cast<double>(model.types()));
  std::vector<std::int32_t> of_type(model.types());
  std::iota(of_type.begin(), of_type.end(), 0);
  Clusters result;
  Random random(seed);
  for (;;) {
    const auto cluster = paired(graph, work, static_cast<double>(most), least, random);
    const std::size_t count =
        cluster.empty() ? 0 : 1 + *std::max_element(cluster.begin(), cluster.end());
    if (count + count / 16 >= graph.size()) return result;
    std::vector<double> sums(count);
    for (std::size_t node = 0; node < cluster.size(); ++node) sums[cluster[node]] += work[node];
    graph = joined(graph, cluster, count);
    work = std::move(sums);
    for (auto& own : of_type) own = cluster[own];
    result.of_type.push_back(of_type);
    result.members.emplace_back(count);
    for (std::size_t type = 0; type < of_type.size(); ++type) {
      result.members.back()[of_type[type]].push_back(static_cast<std::int32_t>(type));
    }
  }
}

}  // namespace hgpart
