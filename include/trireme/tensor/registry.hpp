// The parameter registry: every parameter once, as a named, globally shaped block. Initialisation,
// gradient buckets, the optimizer, checkpoints and the memory plan walk it and know nothing else of
// the model. Values and gradients lie in one flat storage each, in the order of registration.
#ifndef TRIREME_TENSOR_REGISTRY_HPP_
#define TRIREME_TENSOR_REGISTRY_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/tensor/matrix.hpp"
#include "trireme/tensor/state_block.hpp"

namespace trireme::tensor {

enum class InitialiserKind { kConstant, kNormal, kUniform };

struct Initialiser {
  InitialiserKind kind = InitialiserKind::kConstant;
  double scale = 0;  // the constant; the standard deviation; the half-width
};

// Over which ranks, besides the data group, a parameter's gradient has to be summed.
enum class GradientSum {
  kNone,      // this rank's is complete
  kTensor,    // each tensor rank saw other rows (norms under sequence parallelism)
  kKeyValue,  // tensor ranks that share a key/value head: each saw other query heads
  kTied,      // first and last stage: as embedding, as head
};

inline constexpr std::int64_t kWhole = -1;

struct Parameter {
  std::string name;  // global name, e.g. "blocks.3.attention.query.weight"
  Shape shape;       // global shape, row-major, axis 0 is the one that layouts slice
  Initialiser initialiser;
  bool decay = false;         // takes weight decay (matrices do; norms and biases do not)
  bool adjacent = false;      // stored right behind its predecessor, so that both are one matrix
  std::int64_t begin = 0;     // this rank's elements [begin, end) of the flattened global tensor;
  std::int64_t end = kWhole;  // begin == end: held by other ranks only
  int copies = 1;  // ranks of one data replica that hold these elements; this is number `copy`
  int copy = 0;
  GradientSum sum = GradientSum::kNone;
  std::int64_t offset = 0;  // of element `begin` in the flat storage (set by Add)

  std::int64_t LocalSize() const { return end - begin; }  // elements, local
  bool Held() const { return end > begin; }               // by this rank
};

using ParameterId = int;
inline constexpr ParameterId kNoParameter = -1;

class Registry {
 public:
  // Registered in the order of the forward pass, every parameter of the model on every rank, those
  // that other ranks hold with begin == end: these take no storage, and leave offsets and adjacency
  // of the others as if they were not there. Throws RunError for a range outside of the tensor or a
  // copy that is none.
  ParameterId Add(Parameter parameter);
  // Allocates values and, where wanted, gradients, zeroed. Once, after the last Add.
  void Allocate(Dtype dtype, bool gradients = true);
  // Every element from its global coordinates (rule 2): the same weights in every layout.
  void Initialise(std::uint32_t seed);

  // A parameter as a matrix: axis 0 (the local part) are rows, the other axes columns; a vector is
  // one row; one held by other ranks is Empty(), with no rows. With `count` > 1, the matrix of that
  // many adjacent parameters, rows added up. Throws RunError where a range is not of whole rows.
  Matrix Value(ParameterId id, int count = 1) const { return View(values_.get(), id, count); }
  Matrix Gradient(ParameterId id, int count = 1) const { return View(gradients_.get(), id, count); }

  const std::vector<Parameter>& Parameters() const { return parameters_; }
  std::int64_t Size() const { return size_; }  // elements of the flat storage, padding included
  Dtype Type() const { return dtype_; }
  void* Values() const { return values_.get(); }
  void* Gradients() const { return gradients_.get(); }
  void ZeroGradients();

  // Blocks for a checkpoint over a flat storage laid out like the values: names get `prefix`.
  // `replica` of `replicas`: this rank's place in the data group.
  std::vector<StateBlock> Blocks(void* storage, Dtype dtype, const std::string& prefix, int replica,
                                 int replicas) const;

 private:
  bool BehindItsGroup(const Parameter& parameter) const;
  Matrix View(void* storage, ParameterId id, int count) const;
  std::vector<Parameter> parameters_;
  std::int64_t size_ = 0;
  Dtype dtype_ = Dtype::kFloat32;
  device::Buffer values_;     // local, [size_]
  device::Buffer gradients_;  // local, [size_], sums over valid tokens (rule 3)
};

}  // namespace trireme::tensor

#endif  // TRIREME_TENSOR_REGISTRY_HPP_
