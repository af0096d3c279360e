// The tokenizers that belong to an imported model.
#ifndef TRIREME_SRC_APP_IMPORTED_RECORD_HPP_
#define TRIREME_SRC_APP_IMPORTED_RECORD_HPP_

#include "trireme/app/run_record.hpp"

namespace trireme::app {

// Throws InputError if the tokens come from another tokenizer than those of the imported model;
// passes for any other run.json, and for a model without tokenizer files.
void CheckImportedTokenizer(const RunRecord& record, const data::TokenFile& tokens);

}  // namespace trireme::app

#endif  // TRIREME_SRC_APP_IMPORTED_RECORD_HPP_
