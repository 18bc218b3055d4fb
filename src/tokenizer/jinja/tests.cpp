// Tests: what stands behind `is`.
#include "builtins.h"
#include "strings.h"

namespace lora_train::tokenizer::jinja {
namespace {

using Test = bool (*)(const Value&, const Arguments&);

bool is_equal(const Value& v, const Arguments& a) { return equal(v, required(a, 0, "other")); }
bool is_unequal(const Value& v, const Arguments& a) { return !is_equal(v, a); }
bool is_less(const Value& v, const Arguments& a) { return compare(v, required(a, 0, "other")) < 0; }
bool is_more(const Value& v, const Arguments& a) { return compare(v, required(a, 0, "other")) > 0; }
bool is_at_most(const Value& v, const Arguments& a) { return !is_more(v, a); }
bool is_at_least(const Value& v, const Arguments& a) { return !is_less(v, a); }
bool is_same(const Value& v, const Arguments& a) {
  const Value& other = required(a, 0, "other");
  return v.data.index() == other.data.index() && equal(v, other);
}
bool has_remainder(const Value& v, const Value& divisor, std::int64_t remainder) {
  return equal(binary("%", v, divisor), remainder);
}
// An undefined value has __len__, __iter__, __getitem__ and __call__ in Jinja.
bool is_sequence(const Value& v, const Arguments&) {
  return v.is_indexable() || v.as_text() != nullptr || v.is_undefined() ||
         (v.as_dict() != nullptr && v.as_namespace() == nullptr);
}
bool is_iterable(const Value& v, const Arguments& a) {
  return is_sequence(v, a) || v.as_list() != nullptr || v.as_loop() != nullptr;
}
bool is_cased(const Value& v, Case to) {
  const Text text = v.str();
  return change_case(text, to).bytes() == text.bytes() &&
         change_case(text, to == Case::kLower ? Case::kUpper : Case::kLower).bytes() != text.bytes();
}

const std::unordered_map<std::string, Builtin<Test>>& tests() {
  static const std::unordered_map<std::string, Builtin<Test>> table = {
      {"defined", {[](const Value& v, const Arguments&) { return !v.is_undefined(); }}},
      {"undefined", {[](const Value& v, const Arguments&) { return v.is_undefined(); }}},
      {"none", {[](const Value& v, const Arguments&) { return v.is_none(); }}},
      {"string", {[](const Value& v, const Arguments&) { return v.as_text() != nullptr; }}},
      {"number", {[](const Value& v, const Arguments&) { return v.is_number(); }}},
      {"integer", {[](const Value& v, const Arguments&) { return v.as_int() != nullptr; }}},
      {"float", {[](const Value& v, const Arguments&) { return v.as_double() != nullptr; }}},
      {"boolean", {[](const Value& v, const Arguments&) { return v.as_bool() != nullptr; }}},
      {"true", {[](const Value& v, const Arguments&) { return v.as_bool() != nullptr && *v.as_bool(); }}},
      {"false", {[](const Value& v, const Arguments&) { return v.as_bool() != nullptr && !*v.as_bool(); }}},
      {"mapping",
       {[](const Value& v, const Arguments&) { return v.as_dict() != nullptr && v.as_namespace() == nullptr; }}},
      {"iterable", {is_iterable}},
      {"sequence", {is_sequence}},
      {"callable", {[](const Value& v, const Arguments&) {
         return v.as_callable() != nullptr || v.as_loop() != nullptr || v.is_undefined();
       }}},
      {"odd", {[](const Value& v, const Arguments&) { return has_remainder(v, std::int64_t{2}, 1); }}},
      {"even", {[](const Value& v, const Arguments&) { return has_remainder(v, std::int64_t{2}, 0); }}},
      {"divisibleby",
       {[](const Value& v, const Arguments& a) { return has_remainder(v, required(a, 0, "num"), 0); }, {"num"}}},
      {"eq", {is_equal, {"other"}}},
      {"equalto", {is_equal, {"other"}}},
      {"==", {is_equal, {"other"}}},
      {"sameas", {is_same, {"other"}}},
      {"ne", {is_unequal, {"other"}}},
      {"!=", {is_unequal, {"other"}}},
      {"lt", {is_less, {"other"}}},
      {"lessthan", {is_less, {"other"}}},
      {"<", {is_less, {"other"}}},
      {"gt", {is_more, {"other"}}},
      {"greaterthan", {is_more, {"other"}}},
      {">", {is_more, {"other"}}},
      {"le", {is_at_most, {"other"}}},
      {"<=", {is_at_most, {"other"}}},
      {"ge", {is_at_least, {"other"}}},
      {">=", {is_at_least, {"other"}}},
      {"in", {[](const Value& v, const Arguments& a) { return contains(required(a, 0, "seq"), v); }, {"seq"}}},
      {"lower", {[](const Value& v, const Arguments&) { return is_cased(v, Case::kLower); }}},
      {"upper", {[](const Value& v, const Arguments&) { return is_cased(v, Case::kUpper); }}},
  };
  return table;
}

}  // namespace

bool is_test(std::string_view name) { return tests().contains(std::string(name)); }

bool apply_test(const std::string& name, const Value& input, const Arguments& arguments) {
  const Builtin<Test>& test = tests().at(name);
  check_arguments("test " + name, arguments, test.parameters);
  return test.function(input, arguments);
}

}  // namespace lora_train::tokenizer::jinja
