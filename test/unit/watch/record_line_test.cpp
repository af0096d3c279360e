// A line of text per record.
#include "run_state.hpp"

#include <gtest/gtest.h>

namespace trireme::tools {
namespace {

TEST(RecordLine, OfEachKind) {
  EXPECT_EQ(RecordLine(R"({"kind":"step","step":1200,"epoch":0.5,"loss":4.25,"grad_norm":1.5,)"
                       R"("learning_rate":0.001,"tokens_per_second":5310.4,"roof_fraction":0.82})"),
            "step 1,200  epoch 0.50  loss 4.2500  rate 1.0e-03  |grad| 1.50  5,310 tokens/s  roof "
            "82%");
  EXPECT_EQ(RecordLine(R"({"kind":"interval","step":50,"loss_mean":4,"loss_min":3,"loss_max":5,)"
                       R"("tokens_per_second_mean":100,"memory_bytes":1048576,)"
                       R"("watts_per_node":400.4,"joules_per_token":0.125})"),
            "interval 50  loss 4.0000  from 3.0000  to 5.0000  100 tokens/s  memory 1.0 MiB  400 W "
            "a node  0.125 J a token");
  EXPECT_EQ(RecordLine(R"({"kind":"valid_other","set":"code","step":5,"epoch":1,"loss":2})"),
            "valid_other 5  epoch 1.00  set code  loss 2.0000");
  EXPECT_EQ(RecordLine(R"({"kind":"event","event":"stop","step":5,"host":"n1","text":"a\nb"})"),
            "event 5  stop  a b  on n1");
  EXPECT_EQ(RecordLine(R"({"kind":"step","step":5,"loss":null})"), "step 5  loss not finite");
}

TEST(RecordLine, OfWhatIsNone) {
  EXPECT_EQ(RecordLine("{\"kind\":\"st"), "unreadable: a line of 11 bytes");
  EXPECT_EQ(RecordLine(""), "unreadable: an empty line, or one that is too long");
  EXPECT_EQ(RecordLine("7"), "unreadable: a line of 1 byte");
}

TEST(RecordLine, IsPrintable) {
  EXPECT_EQ(RecordLine(R"({"kind":"x\u001b]0;t\u0007","step":1})"), "x�]0;t� 1");
  EXPECT_EQ(RecordLine(R"({"kind":"event","event":"e","step":1,"text":"\u001b[31mred"})"),
            "event 1  e  �[31mred");
}

}  // namespace
}  // namespace trireme::tools
