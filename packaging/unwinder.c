/* A stand-in for libgcc_s.so.1, the unwinder of every glibc system, to link against: toolchain.py says why. Only names and
   versions matter; no code of it is ever run. */
#define EXPORT(name) void name(void) {}

EXPORT(_Unwind_Backtrace)
EXPORT(_Unwind_DeleteException)
EXPORT(_Unwind_FindEnclosingFunction)
EXPORT(_Unwind_ForcedUnwind)
EXPORT(_Unwind_GetCFA)
EXPORT(_Unwind_GetDataRelBase)
EXPORT(_Unwind_GetGR)
EXPORT(_Unwind_GetIP)
EXPORT(_Unwind_GetIPInfo)
EXPORT(_Unwind_GetLanguageSpecificData)
EXPORT(_Unwind_GetRegionStart)
EXPORT(_Unwind_GetTextRelBase)
EXPORT(_Unwind_RaiseException)
EXPORT(_Unwind_Resume)
EXPORT(_Unwind_Resume_or_Rethrow)
EXPORT(_Unwind_SetGR)
EXPORT(_Unwind_SetIP)
