// Every parameter of the model once, as a named, globally shaped block with a place in a flat
// range: what is known of the parameters before any memory exists.
#ifndef TRIREME_KERNELS_PARAMETER_LIST_HPP_
#define TRIREME_KERNELS_PARAMETER_LIST_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/partition.hpp"
#include "trireme/kernels/state_block.hpp"

namespace trireme::kernels {

enum class InitialiserKind { kConstant, kNormal, kUniform };

struct Initialiser {
  InitialiserKind kind = InitialiserKind::kConstant;
  double scale = 0;  // the constant; the standard deviation; the half-width
};

// Ranks over which a parameter's gradient is summed, besides the data group.
enum class GradientSum {
  kNone,      // none: the gradient of a rank is complete
  kTensor,    // tensor ranks, each of which saw other rows (norms under sequence parallelism)
  kKeyValue,  // tensor ranks that share a key/value head, each of which saw other query heads
  kTied,      // first and last stage: gradient as embedding, gradient as head
};

inline constexpr std::int64_t kWhole = -1;

struct Parameter {
  std::string name;  // global name, e.g. "blocks.3.attention.query.weight"
  Shape shape;       // global shape, row-major; layouts slice axis 0
  Initialiser initialiser;
  bool decay = false;  // takes weight decay (matrices do; norms and biases do not)
  // Gradient found in the input-gradient task, where weight gradients are a task of their own
  // (norms).
  bool early = false;
  bool adjacent = false;      // stored right after its predecessor, so that both are one matrix
  std::int64_t begin = 0;     // elements of this rank: [begin, end) of the flattened global tensor;
  std::int64_t end = kWhole;  // begin == end: held by other ranks only
  int copies = 1;  // ranks of one data replica that hold these elements; this is number `copy`
  int copy = 0;
  GradientSum sum = GradientSum::kNone;
  // Elements after it in the flat storage that stay zero, in values and gradients: products may
  // take them along. Only of a held parameter to which nothing is adjacent.
  std::int64_t spare = 0;
  std::int64_t offset = 0;  // of element `begin` in the flat range (set by Add)

  std::int64_t LocalSize() const { return end - begin; }  // elements, local
  bool Held() const { return end > begin; }               // by this rank
};

using ParameterId = int;
inline constexpr ParameterId kNoParameter = -1;

// Parameters that are used together, a layer's. Flat offsets, local.
struct Unit {
  std::string name;    // "embedding.token", "blocks.3", "head" ...
  Part range;          // empty if other ranks hold it
  bool block = false;  // one of many alike, used one after the other
};

// Filled in the order of the forward pass with every parameter of the model, on every rank.
class ParameterList {
 public:
  // Starts a unit, to which parameters added from here on belong; returns its number. The first Add
  // without one starts a unit without a name.
  int BeginUnit(const std::string& name, bool block = false);
  // Appends a parameter. A parameter held by other ranks only (begin == end) takes no storage and
  // does not change offsets or adjacency of the others. RunError for a range outside of the tensor
  // or an impossible copy.
  ParameterId Add(Parameter parameter);
  // Gives a parameter a second gradient with a flat range of its own after all parameters; after
  // the last Add. Only gradients are stored there.
  void AddSecondGradient(ParameterId id);

  const std::vector<Parameter>& Parameters() const { return parameters_; }
  const std::vector<Unit>& Units() const { return units_; }
  int UnitOf(ParameterId id) const { return unit_of_.at(static_cast<std::size_t>(id)); }
  std::int64_t Size() const { return size_; }  // flat elements of all parameters, padding included
  std::int64_t GradientSize() const { return size_ + second_size_; }  // with second gradients
  Part SecondRange() const { return {size_, size_ + second_size_}; }  // flat; empty: there is none
  ParameterId SecondOf() const { return second_; }                    // or kNoParameter
  // Early gradients have a compact storage of their own: their elements, and a parameter's first.
  std::int64_t EarlySize() const { return early_size_; }
  std::int64_t EarlyOffset(ParameterId id) const {
    return early_at_.at(static_cast<std::size_t>(id));
  }

 private:
  bool FollowsItsGroup(const Parameter& parameter) const;
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_;            // [parameters]
  std::vector<std::int64_t> early_at_;  // [parameters]: in the early storage
  ParameterId second_ = kNoParameter;
  std::int64_t size_ = 0, second_size_ = 0, early_size_ = 0;
};

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_PARAMETER_LIST_HPP_
