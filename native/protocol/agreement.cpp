#include "protocol/agreement.h"

#include <algorithm>
#include <utility>

#include "protocol/collectives.h"
#include "protocol/submission.h"

namespace shoal {

namespace {

// The part of the shape that must agree.
std::vector<std::int64_t> compared_shape(const wire::Opening& opening) {
  if (is_gather(opening.collective) && !opening.shape.empty()) {
    return {opening.shape.begin() + 1, opening.shape.end()};
  }
  return opening.shape;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace

void take_arguments(wire::Opening& opening, const Submission& submission) {
  opening.collective = submission.collective;
  opening.op = submission.op;
  opening.dtype = submission.dtype;
  opening.root = submission.root;
  opening.shape = submission.shape;
  opening.splits = submission.splits;
  opening.divisor = submission.divisor;
}

bool agree(const wire::Opening& a, const wire::Opening& b, std::string& what) {
  const auto differ = [&what](bool different, const char* attribute) {
    if (different && what.empty()) {
      what = attribute;
    }
  };
  what.clear();
  differ(a.name != b.name, "name");
  differ(a.collective != b.collective, "operation");
  differ(a.op != b.op, "operator");
  differ(a.dtype != b.dtype, "dtype");
  differ(a.wire_dtype() != b.wire_dtype(), "wire dtype");
  differ(a.root != b.root, "root");
  differ(a.divisor != b.divisor, "divisor");
  differ(a.shape.size() != b.shape.size() || compared_shape(a) != compared_shape(b), "shape");
  differ(!is_gather(a.collective) && a.bytes != b.bytes, "size");
  return what.empty();
}

std::string describe(const wire::Opening& opening) {
  std::string text = name_of(opening.collective);
  if (opening.op != Operator::none) {
    text += std::string(" ") + name_of(opening.op);
  }
  if (opening.dtype != DType::none) {
    text += std::string(" ") + name_of(opening.dtype) + shape_text(opening.shape);
  }
  if (opening.wire_dtype() != opening.dtype) {
    text += std::string(" as ") + name_of(opening.wire_dtype());
  }
  if (traits_of(opening.collective).has_root()) {
    text += " from member " + std::to_string(opening.root);
  }
  return text;
}

std::string mismatch_text(const std::vector<const wire::Opening*>& openings, const std::vector<std::uint32_t>& ranks,
                          bool by_nodes, const JobConfig& config) {
  const wire::Opening& first =
      **std::find_if(openings.begin(), openings.end(), [](const auto* o) { return o != nullptr; });
  // Members that sent the same are named together.
  std::vector<std::pair<std::string, std::vector<std::uint32_t>>> sent;
  std::vector<std::uint32_t> absent;
  std::string what;
  for (std::size_t i = 0; i < openings.size(); ++i) {
    if (openings[i] == nullptr) {
      absent.push_back(ranks[i]);
      continue;
    }
    std::string differs;
    if (!agree(first, *openings[i], differs) && what.empty()) {
      what = differs;
    }
    const std::string text = describe(*openings[i]);
    auto same = std::find_if(sent.begin(), sent.end(), [&text](const auto& entry) { return entry.first == text; });
    if (same == sent.end()) {
      sent.push_back({text, {}});
      same = sent.end() - 1;
    }
    same->second.push_back(ranks[i]);
  }
  std::string text = "'" + first.name + "': ranks disagree on the " + (what.empty() ? "group" : what) + ": ";
  for (std::size_t i = 0; i < sent.size(); ++i) {
    text += (i == 0 ? "" : "; ") + ranks_text(sent[i].second, config) + " called " + sent[i].first;
  }
  if (!absent.empty()) {
    text += "; " + ranks_text(absent, config) +
            (by_nodes && absent.size() > 1 ? " had not all called it yet" : " had not called it yet");
  }
  return text + ". Every rank must call it with the same arguments";
}

Status failed_before(const wire::Opening& opening, std::uint32_t rank, const JobConfig& config) {
  if (opening.code != Code::ok) {
    return Status::error(opening.code, opening.text, opening.rank);
  }
  return Status::error(
      Code::failed_on_rank,
      "'" + opening.name + "' failed on " + rank_text(rank, config) + " before it began: " + opening.text,
      static_cast<std::int32_t>(rank));
}

}  // namespace shoal
