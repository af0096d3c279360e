// sparse_tokens FROM TO TOKENS: a copy of a small token file with so many training tokens, all of
// id 0, which take no room on the disk.
#include <hdf5.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

hid_t Checked(hid_t id, const char* what) {
  if (id >= 0) return id;
  std::fprintf(stderr, "sparse_tokens: %s\n", what);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const hsize_t tokens = std::strtoull(argv[3], nullptr, 10);
  const hid_t from = Checked(H5Fopen(argv[1], H5F_ACC_RDONLY, H5P_DEFAULT), "cannot open FROM");
  const hid_t properties = H5Fget_create_plist(from);
  const hid_t to =
      Checked(H5Fcreate(argv[2], H5F_ACC_TRUNC, properties, H5P_DEFAULT), "cannot make TO");
  for (const char* group : {"valid", "test", "vocabulary"}) {
    Checked(H5Ocopy(from, group, to, group, H5P_DEFAULT, H5P_DEFAULT), group);
  }
  for (const char* name : {"format", "tokenizer", "eos", "unk", "source_sha256"}) {
    const hid_t source = Checked(H5Aopen(from, name, H5P_DEFAULT), name);
    const hid_t type = H5Aget_type(source), space = H5Aget_space(source);
    char value[1024];
    Checked(H5Aread(source, type, value), name);
    const hid_t target = Checked(H5Acreate2(to, name, type, space, H5P_DEFAULT, H5P_DEFAULT), name);
    Checked(H5Awrite(target, type, value), name);
  }
  // Room in the file from the start, never written.
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
  const hid_t space = H5Screate_simple(1, &tokens, nullptr);
  const hid_t group =
      Checked(H5Gcreate2(to, "train", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), "train");
  Checked(H5Dcreate2(group, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, creation, H5P_DEFAULT),
          "train/tokens");
  H5close();  // and with it everything that is open
  return 0;
}
