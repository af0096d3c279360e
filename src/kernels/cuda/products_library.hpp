// Owners of cuBLASLt's handles, and its status codes as exceptions.
#ifndef TRIREME_SRC_KERNELS_CUDA_PRODUCTS_LIBRARY_HPP_
#define TRIREME_SRC_KERNELS_CUDA_PRODUCTS_LIBRARY_HPP_

#include <cublasLt.h>

#include <memory>
#include <type_traits>

namespace trireme::kernels::cuda {

// RunError "what: cuBLASLt says the requested functionality is not supported (15)".
void Check(cublasStatus_t status, const char* what);

template <auto Destroy>
struct Release {
  template <typename T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
template <typename Pointer, auto Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, Release<Destroy>>;

using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <typename Value>
void Set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  Check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value),
        "a property of a matrix product");
}

template <typename Value>
void Set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  Check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "a preference among algorithms");
}

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_PRODUCTS_LIBRARY_HPP_
