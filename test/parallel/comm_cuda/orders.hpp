// Orders in which queues run: all that a test should try.
#ifndef TRIREME_TEST_PARALLEL_COMM_CUDA_ORDERS_HPP_
#define TRIREME_TEST_PARALLEL_COMM_CUDA_ORDERS_HPP_

namespace trireme::test {

int Orders();                 // 1 where nobody can choose
void ChooseOrder(int order);  // from 0; another on each rank

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_COMM_CUDA_ORDERS_HPP_
