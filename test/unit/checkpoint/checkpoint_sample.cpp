// Writes a checkpoint with known values for test/system/safetensors_opens.py: checkpoint_sample
// FOLDER
#include "checkpoint_fixture.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/runtime.hpp"

int main(int argc, char** argv) {
  using trireme::checkpoint::test::TestState;
  trireme::comm::Runtime runtime(&argc, &argv);
  return runtime.Guard([&] {
    if (argc != 2) throw trireme::InputError("usage: checkpoint_sample FOLDER");
    TestState model({{"weight", {3, 5}, trireme::Dtype::kFloat32},
                     {"bias", {3}, trireme::Dtype::kFloat64, 2.0},
                     {"scale", {}, trireme::Dtype::kFloat32, 4.0},
                     {"large", {1100, 1000}, trireme::Dtype::kFloat32, 0.5}});
    TestState none({});
    model.Fill();
    trireme::checkpoint::Write(runtime.World(), argv[1], 1,
                               {model.Blocks(), none.Blocks(), {{"step", 1}}}, false, 0);
    return trireme::ExitCode::kDone;
  });
}
