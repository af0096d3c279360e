// The scratch that all layers share, sized for the largest micro-batch.
#ifndef TRIREME_SRC_MODEL_WORKSPACE_HPP_
#define TRIREME_SRC_MODEL_WORKSPACE_HPP_

#include "trireme/model/head_layer.hpp"
#include "trireme/model/plan.hpp"

namespace trireme::model {

// pass: of the largest entry. head: null unless this rank computes the loss.
Workspace AllocateWorkspace(const Pass& pass, const ModelPlan& plan, const HeadLayer* head,
                            device::Arena& arena);

}  // namespace trireme::model

#endif  // TRIREME_SRC_MODEL_WORKSPACE_HPP_
