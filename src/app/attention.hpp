// Kernels of attention that a deck asks for.
#ifndef TRIREME_SRC_APP_ATTENTION_HPP_
#define TRIREME_SRC_APP_ATTENTION_HPP_

#include "trireme/app/job.hpp"

namespace trireme::app {

// InputError with the deck's line where run.attention = cudnn and cuDNN cannot compute it.
void RequireCudnnIfAsked(const Job& job);
// InputError where a training is to be deterministic and cuDNN's backward pass is not, on this GPU.
void RequireFixedOrder(const Job& job);

}  // namespace trireme::app

#endif  // TRIREME_SRC_APP_ATTENTION_HPP_
