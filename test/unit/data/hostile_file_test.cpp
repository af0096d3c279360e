// Token files made to overflow, to reach into other files or to ask for much memory: refused by
// what describes them, before anything is read.
#include <hdf5.h>
#include <sys/resource.h>

#include <cstring>
#include <iterator>
#include <random>

#include "hdf5.hpp"
#include "scratch.hpp"
#include "token_layout.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kDamages = 2000;
constexpr std::int64_t kMemoryBound = std::int64_t{64} << 20;  // bytes, beside HDF5's own

std::int64_t PeakBytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} << 10;
}

template <typename T>
std::string Packed(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

class HostileFile : public Scratch {
 protected:
  HostileFile() {
    WriteTokenFile(path_, SmallData(), true);
    peak_ = PeakBytes();
  }
  ~HostileFile() override { EXPECT_LT(PeakBytes() - peak_, kMemoryBound); }

  std::string Bytes() const { return test::ReadBytes(path_); }

  // Message of opening; the plan's look must say the same.
  std::string Refusal() const {
    const std::string message = MessageOf([&] { Open(path_); });
    EXPECT_EQ(message, MessageOf([&] { CountTokens(path_); }));
    return message.empty() ? "accepted" : message;
  }

  // Refusal of the good file with the bytes `from`, found `times` times, replaced.
  std::string Patched(const std::string& from, const std::string& to, int times = 1) const {
    const std::string good = Bytes();
    std::string bytes = good;
    int found = 0;
    for (auto at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1)) {
      bytes.replace(at, to.size(), to);
      ++found;
    }
    EXPECT_EQ(found, times);
    Write("a.h5", bytes);
    const std::string message = Refusal();
    Write("a.h5", good);
    return message;
  }

  // Refusal of the good file with something else at `name`, made by make(file).
  template <typename Make>
  std::string Replaced(const std::string& name, Make&& make) const {
    const std::string good = Bytes();
    {
      const Hdf5Handle file(H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      EXPECT_GE(H5Ldelete(file.Get(), name.c_str(), H5P_DEFAULT), 0);
      make(file.Get());
    }
    const std::string message = Refusal();
    Write("a.h5", good);
    return message;
  }

  // Refusal with /valid/tokens made by `creation`, written unless `values` is empty.
  std::string Valid(const Hdf5Handle& creation, const Hdf5Handle& space,
                    const std::vector<std::uint16_t>& values) const {
    return Replaced("/valid/tokens", [&](hid_t file) {
      const Hdf5Handle set(H5Dcreate2(file, "/valid/tokens", H5T_NATIVE_UINT16, space.Get(),
                                      H5P_DEFAULT, creation.Get(), H5P_DEFAULT),
                           H5Dclose);
      EXPECT_TRUE(set.Valid());
      if (values.empty()) return;
      EXPECT_GE(
          H5Dwrite(set.Get(), H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    });
  }

  static Hdf5Handle Space(hsize_t extent) {
    return {H5Screate_simple(1, &extent, nullptr), H5Sclose};
  }

  const std::string path_ = In("a.h5");
  const std::vector<std::uint16_t> three_ = {0, 1, 2};
  std::int64_t peak_ = 0;
};

TEST_F(HostileFile, StorageInPiecesIsRefused) {
  const hsize_t piece = 2, extent = 3, unlimited = H5S_UNLIMITED;
  const Hdf5Handle chunked = MakeProperties(H5P_DATASET_CREATE);
  H5Pset_chunk(chunked.Get(), 1, &piece);
  const std::string chunks = path_ + ": /valid/tokens: it is stored in chunks, not in one piece";
  EXPECT_THAT(Valid(chunked, Space(3), three_), HasSubstr(chunks));
  const Hdf5Handle endless(H5Screate_simple(1, &extent, &unlimited), H5Sclose);
  EXPECT_THAT(Valid(chunked, endless, three_), HasSubstr(chunks));
  H5Pset_deflate(chunked.Get(), 9);
  EXPECT_THAT(Valid(chunked, Space(3), three_), HasSubstr(chunks));
  // A small file that unpacks to gigabytes.
  EXPECT_THAT(Valid(chunked, Space(hsize_t{1} << 40), {}), HasSubstr(chunks));
  const Hdf5Handle compact = MakeProperties(H5P_DATASET_CREATE);
  H5Pset_layout(compact.Get(), H5D_COMPACT);
  EXPECT_THAT(Valid(compact, Space(3), three_),
              HasSubstr("/valid/tokens: its storage is compact, not contiguous"));
}

TEST_F(HostileFile, OtherFilesAreNotRead) {
  WriteTokenFile(In("other.h5"), SmallData(), true);
  Write("secret", "abcdef");
  const Hdf5Handle outside = MakeProperties(H5P_DATASET_CREATE);
  H5Pset_external(outside.Get(), In("secret").c_str(), 0, 6);
  EXPECT_THAT(Valid(outside, Space(3), {}),
              HasSubstr(path_ + ": /valid/tokens: it is stored in other files (external)"));
  const Hdf5Handle together = MakeProperties(H5P_DATASET_CREATE);
  const Hdf5Handle three = Space(3);
  H5Pset_virtual(together.Get(), three.Get(), In("other.h5").c_str(), "/valid/tokens", three.Get());
  EXPECT_THAT(Valid(together, three, {}), HasSubstr("/valid/tokens: it is a virtual dataset"));
  const auto linked = [&](const std::string& name) {
    return Replaced(name, [&](hid_t file) {
      H5Lcreate_external(In("other.h5").c_str(), name.c_str(), file, name.c_str(), H5P_DEFAULT,
                         H5P_DEFAULT);
    });
  };
  EXPECT_THAT(linked("/valid/tokens"),
              HasSubstr("/valid/tokens is a link to another file, which is not followed"));
  EXPECT_THAT(linked("/valid"),
              HasSubstr("/valid/tokens: /valid is a link to another file, which is not followed"));
  EXPECT_THAT(linked("/vocabulary/bytes"), HasSubstr("/vocabulary/bytes is a link to another"));
}

TEST_F(HostileFile, SoftLinksAreNotFollowed) {
  const auto linked = [&](const std::string& name, const std::string& target) {
    return Replaced(name, [&](hid_t file) {
      H5Lcreate_soft(target.c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
    });
  };
  EXPECT_THAT(linked("/valid/tokens", "/train/tokens"),
              HasSubstr("/valid/tokens is a soft link, which is not followed"));
  EXPECT_THAT(linked("/valid/tokens", "/valid/tokens"), HasSubstr("is a soft link"));
  EXPECT_THAT(linked("/valid", "/train"), HasSubstr("/valid/tokens: /valid is a soft link"));
}

TEST_F(HostileFile, ExtentsAreBounded) {
  const Hdf5Handle plain = MakeProperties(H5P_DATASET_CREATE);
  EXPECT_THAT(Valid(plain, Space(hsize_t{1} << 62), {}),
              HasSubstr("/valid/tokens: 4611686018427387904 elements of 2 bytes are too many"));
  EXPECT_THAT(Valid(plain, Space(hsize_t{1} << 40), {}),
              HasSubstr("/valid/tokens: its 1099511627776 elements were never written"));
  EXPECT_THAT(Valid(plain, {H5Screate(H5S_NULL), H5Sclose}, {}), HasSubstr("a null dataspace"));
  EXPECT_THAT(Valid(plain, {H5Screate(H5S_SCALAR), H5Sclose}, {}),
              HasSubstr("has 0 dimensions, not 1"));
  // Version 1, one dimension, flags 1 (its largest is given, too), reserved, extent 3, largest 3.
  const std::string before = Packed(std::uint64_t{0x010101});
  const std::string three = Packed(std::uint64_t{3});
  const auto extent = [&](std::uint64_t now, std::uint64_t largest) {
    return Patched(before + three + three, before + Packed(now) + Packed(largest));
  };
  EXPECT_EQ(extent(3, 3), "accepted");
  EXPECT_THAT(extent(std::uint64_t{1} << 62, std::uint64_t{1} << 62), HasSubstr("/valid/tokens: "));
  EXPECT_THAT(extent(4, 4), HasSubstr("/valid/tokens: "));
  EXPECT_THAT(extent(3, ~std::uint64_t{0}), HasSubstr("/valid/tokens: "));
}

TEST_F(HostileFile, StorageLiesWithinTheFile) {
  std::uint64_t offset = 0;
  {
    const Hdf5Handle file = OpenSerially(path_);
    const Hdf5Handle set(H5Dopen2(file.Get(), "/valid/tokens", H5P_DEFAULT), H5Dclose);
    offset = H5Dget_offset(set.Get());
  }
  const std::string place = Packed(offset);
  const std::string bytes = Packed(std::uint64_t{6});
  const auto storage = [&](std::uint64_t begin, std::uint64_t length) {
    return Patched(place + bytes, Packed(begin) + Packed(length));
  };
  EXPECT_THAT(storage(offset + 1'000'000, 6), HasSubstr("/valid/tokens: its 6 bytes at offset"));
  EXPECT_THAT(storage(std::uint64_t{1} << 62, 6), HasSubstr("/valid/tokens: "));
  EXPECT_THAT(storage(~std::uint64_t{1}, 6), HasSubstr("/valid/tokens: "));
  EXPECT_THAT(storage(~std::uint64_t{0}, 6), HasSubstr("were never written"));
  EXPECT_THAT(storage(offset, 4), HasSubstr("/valid/tokens: "));
  EXPECT_THAT(storage(offset, ~std::uint64_t{0}), HasSubstr("/valid/tokens: "));
}

TEST_F(HostileFile, TextsAreBounded) {
  const std::uint64_t heap = Bytes().find("GCOL");
  ASSERT_NE(heap, std::string::npos);
  // The reference of source_sha256, 64 bytes long, in the attribute.
  const std::string length = Packed(std::uint32_t{64}), place = Packed(heap);
  const std::string where = ": attribute source_sha256: ";
  for (const std::uint32_t claim : {0xFFFFFFFFu, 0x7FFFFFFFu, 65'537u}) {
    EXPECT_THAT(Patched(length + place, Packed(claim) + place),
                HasSubstr(where + "claims " + std::to_string(claim) + " bytes, more than 65536"));
  }
  EXPECT_THAT(Patched(length + place, Packed(std::uint32_t{63}) + place),
              HasSubstr(where + "its 63 bytes are not in the file"));
  for (const std::uint64_t at : {heap + 8, std::uint64_t{1} << 40, ~std::uint64_t{7}}) {
    EXPECT_THAT(Patched(length + place, length + Packed(at)),
                HasSubstr(where + "its 64 bytes are not in the file"));
  }
  // The heap: its own length, and the length of the object.
  const std::string head = std::string("GCOL\1\0\0\0", 8);
  EXPECT_THAT(Patched(head, head + Packed(~std::uint64_t{0})), HasSubstr("are not in the file"));
  for (const std::uint64_t claim : {~std::uint64_t{0}, std::uint64_t{1} << 40, std::uint64_t{63}}) {
    const std::string text = std::string(4, '\0') + Packed(std::uint64_t{64}) + "aaaa";
    EXPECT_THAT(Patched(text, std::string(4, '\0') + Packed(claim)),
                HasSubstr(where + "its 64 bytes are not in the file"));
  }
}

TEST_F(HostileFile, AttributesOfOtherTypesAreRefused) {
  const auto attribute = [&](const char* name, const Hdf5Handle& type, const void* value) {
    const std::string good = Bytes();
    {
      const Hdf5Handle file(H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      H5Adelete(file.Get(), name);
      const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
      const Hdf5Handle made(
          H5Acreate2(file.Get(), name, type.Get(), space.Get(), H5P_DEFAULT, H5P_DEFAULT),
          H5Aclose);
      EXPECT_GE(H5Awrite(made.Get(), type.Get(), value), 0);
    }
    const std::string message = Refusal();
    Write("a.h5", good);
    return message;
  };
  const auto copy = [](hid_t type) { return Hdf5Handle(H5Tcopy(type), H5Tclose); };
  const double real = 1.0;
  const std::int64_t integer = 1;
  EXPECT_THAT(attribute("format", copy(H5T_NATIVE_DOUBLE), &real),
              HasSubstr("attribute format: is not a number"));
  EXPECT_THAT(attribute("tokenizer", copy(H5T_NATIVE_INT64), &integer),
              HasSubstr("attribute tokenizer: is not one text"));
  const Hdf5Handle fixed = copy(H5T_C_S1);
  H5Tset_size(fixed.Get(), 8);
  EXPECT_EQ(attribute("tokenizer", fixed, "word\0\0\0"), "accepted");
  EXPECT_THAT(attribute("eos", fixed, "word\0\0\0"), HasSubstr("attribute eos: is not a number"));
}

TEST_F(HostileFile, VocabulariesAreBounded) {
  const auto sized = [&](const std::string& name, hid_t type, hsize_t extent) {
    return Replaced(name, [&](hid_t file) {
      const Hdf5Handle creation = MakeProperties(H5P_DATASET_CREATE);
      H5Pset_alloc_time(creation.Get(), H5D_ALLOC_TIME_EARLY);
      H5Pset_fill_time(creation.Get(), H5D_FILL_TIME_NEVER);
      const Hdf5Handle set(H5Dcreate2(file, name.c_str(), type, Space(extent).Get(), H5P_DEFAULT,
                                      creation.Get(), H5P_DEFAULT),
                           H5Dclose);
      EXPECT_TRUE(set.Valid());
    });
  };
  // Files with a hole: long, but small on the disk.
  EXPECT_THAT(sized("/vocabulary/offsets", H5T_STD_U64LE, hsize_t{1} << 25),
              HasSubstr("/vocabulary/offsets: holds 33554432 elements; at most 16777217"));
  EXPECT_THAT(sized("/vocabulary/bytes", H5T_STD_U8LE, hsize_t{1} << 29),
              HasSubstr("/vocabulary/bytes: holds 536870912 elements; at most 268435456"));
}

// Files of h5py, of both generations of the format, are as good as ours.
TEST_F(HostileFile, FilesOfH5pyAreRead) {
  if (system("/usr/bin/python3 -c 'import h5py' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "Python has no h5py (Debian: python3-h5py)";
  }
  const std::string script = Write("make.py",
                                   "import h5py, sys\n"
                                   "source = h5py.File(sys.argv[1], 'r')\n"
                                   "target = h5py.File(sys.argv[2], 'w', libver=sys.argv[3])\n"
                                   "for name, value in source.attrs.items():\n"
                                   "    target.attrs[name] = value\n"
                                   "for name in ('train/tokens', 'valid/tokens', 'test/tokens',\n"
                                   "             'vocabulary/bytes', 'vocabulary/offsets'):\n"
                                   "    target[name] = source[name][:]\n");
  for (const std::string version : {"earliest", "latest"}) {
    const std::string path = In(version + ".h5");
    const std::string command = "/usr/bin/python3 " + script + " " + path_ + " " + path + " ";
    ASSERT_EQ(system((command + version).c_str()), 0);
    const TokenFile file = Open(path);
    EXPECT_EQ(AllTokens(file, Split::kTrain), SmallData().tokens[0]);
    EXPECT_EQ(file.Words().words, SmallData().vocabulary.words);
    EXPECT_EQ(file.SourceSha256(), SmallData().source_sha256);
  }
}

// A superblock of an unknown version: HDF5 refuses the file, and its reason is in the message.
TEST_F(HostileFile, ReasonsOfHdf5AreSaid) {
  std::string bytes = Bytes();
  bytes[8] = 9;
  Write("a.h5", bytes);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("HDF5 cannot open this file"), HasSubstr("HDF5: "),
                               testing::Not(HasSubstr("no reason given"))));
}

TEST_F(HostileFile, DamageIsRefusedOrRead) {
  const std::string good = Bytes();
  std::vector<std::size_t> used;  // offsets of bytes that are not 0
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (good[i] != '\0') used.push_back(i);
  }
  std::mt19937_64 random(11);
  int refused = 0;
  for (int i = 0; i < kDamages; ++i) {
    std::string bytes = good;
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    for (std::uint64_t flips = random() % 3; flips > 0 && !bytes.empty(); --flips) {
      // A byte that is used, or one of those after it: the zeros of a number.
      const std::size_t at = used[random() % used.size()] + random() % 8;
      if (at >= bytes.size()) continue;
      bytes[at] = random() % 2 == 0 ? static_cast<char>(bytes[at] ^ (1 << random() % 8))
                                    : static_cast<char>(random());
    }
    Write("a.h5", bytes);
    refused += !MessageOf([&] { Open(path_); }).empty();
  }
  EXPECT_GT(refused, kDamages / 10);
  EXPECT_LT(refused, kDamages);
}

// The temporary file's name is known to everybody who can write to the folder.
TEST_F(HostileFile, PlantedTemporaryIsNotFollowed) {
  Write("victim", "precious");
  for (const char* target : {"victim", "nowhere"}) {
    std::filesystem::create_symlink(In(target), In("a.h5.tmp"));
    WriteTokenFile(path_, SmallData(), true);
    EXPECT_EQ(AllTokens(Open(path_), Split::kTrain), SmallData().tokens[0]);
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(In("a.h5.tmp"))));
  }
  std::ifstream victim(In("victim"));
  std::string text;
  std::getline(victim, text);
  EXPECT_EQ(text, "precious");
  EXPECT_FALSE(std::filesystem::exists(In("nowhere")));
}

}  // namespace
}  // namespace trireme::data
