//! AVX2: two registers of eight.

use super::{LANES, Vector};
use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

macro_rules! lanewise {
    ($($trait:ident $method:ident $intrinsic:ident),*) => {$(
        impl $trait for Avx2 {
            type Output = Avx2;

            #[inline(always)]
            fn $method(self, other: Avx2) -> Avx2 {
                // SAFETY: `Vector` is only used if the CPU has it.
                unsafe { Avx2($intrinsic(self.0, other.0), $intrinsic(self.1, other.1)) }
            }
        }
    )*};
}

lanewise!(Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);

// SAFETY (each `unsafe` below): `Vector` is only used if the CPU has it; arrays have the loaded size.

#[inline(always)]
unsafe fn widen(bits: __m128i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))) }
}

/// The bits of bf16, each in the lower half of its lane.
#[inline(always)]
unsafe fn narrow(wide: __m256) -> __m256i {
    unsafe {
        let bits = _mm256_castps_si256(wide);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
    }
}

#[inline(always)]
unsafe fn choose(left: __m256, right: __m256, yes: __m256, no: __m256) -> __m256 {
    unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LE_OQ>(left, right)) }
}

#[inline(always)]
unsafe fn add_exponent(number: __m256, shifted: __m256) -> __m256 {
    unsafe {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(number), exponent))
    }
}

impl Vector for Avx2 {
    const ROWS: usize = 4;

    #[inline(always)]
    fn splat(value: f32) -> Avx2 {
        unsafe { Avx2(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    fn load_f32(from: &[f32; LANES]) -> Avx2 {
        unsafe { Avx2(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr())) }
    }

    #[inline(always)]
    fn store_f32(self, to: &mut [f32; LANES]) {
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), self.0);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), self.1);
        }
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Avx2 {
        unsafe {
            let low = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_loadu_si128(from[8..].as_ptr().cast());
            Avx2(widen(low), widen(high))
        }
    }

    #[inline(always)]
    fn store_bf16(self, to: &mut [u16; LANES]) {
        unsafe {
            // Packing works within halves of a register; the permutation puts the quarters in order.
            let packed = _mm256_packus_epi32(narrow(self.0), narrow(self.1));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    fn mul_add(self, by: Avx2, plus: Avx2) -> Avx2 {
        unsafe { Avx2(_mm256_fmadd_ps(self.0, by.0, plus.0), _mm256_fmadd_ps(self.1, by.1, plus.1)) }
    }

    #[inline(always)]
    fn greater(self, other: Avx2) -> Avx2 {
        unsafe { Avx2(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn choose_at_most(left: Avx2, right: Avx2, yes: Avx2, no: Avx2) -> Avx2 {
        unsafe { Avx2(choose(left.0, right.0, yes.0, no.0), choose(left.1, right.1, yes.1, no.1)) }
    }

    #[inline(always)]
    fn add_to_exponent(self, shifted: Avx2) -> Avx2 {
        unsafe { Avx2(add_exponent(self.0, shifted.0), add_exponent(self.1, shifted.1)) }
    }
}
