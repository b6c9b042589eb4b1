// The flat arrays that every native function reads; the caller (NumPy) owns them.
#pragma once

#include <cstdint>

namespace hgpart {

template <typename T>
struct Span {
  const T* data;
  std::int64_t size;

  const T& operator[](std::int64_t index) const { return data[index]; }
  const T* begin() const { return data; }
  const T* end() const { return data + size; }
};

// The pins of all nets lie one net after the other (CSR); the first of a net is its root.
//
//   pointers   0       3     5         9   net e: pins[pointers[e]] .. pins[pointers[e + 1] - 1]
//              |       |     |
//   pins       4 0 1   2 0   3 0 1 2
struct Hypergraph {
  Span<std::int64_t> weights;     // of each vertex
  Span<std::int64_t> costs;       // of each net, in bytes
  Span<std::int64_t> pointers;    // nets + 1 entries
  Span<std::int32_t> pins;
  Span<bool> gathers;             // false: the root sends to the others; true: they send to it
  Span<std::int32_t> net_layers;  // what a layer sends from part to part is one message

  std::int64_t vertices() const { return weights.size; }
  std::int64_t nets() const { return costs.size; }

  Span<std::int32_t> pins_of(std::int64_t net) const {
    return {pins.data + pointers[net], pointers[net + 1] - pointers[net]};
  }
};

struct Partition {
  Span<std::int32_t> parts;  // of each vertex
  std::int64_t k;
};

}  // namespace hgpart
