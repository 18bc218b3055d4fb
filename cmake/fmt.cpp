// The archive of fmt that Debian does not have: what its headers only declare.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
}  // namespace detail
template detail::locale_ref::locale_ref(const std::locale& locale);
template auto detail::locale_ref::get<std::locale>() const -> std::locale;
FMT_END_NAMESPACE
